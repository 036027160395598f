"""The console: web pages on which operators see an application, each with the same facts as JSON."""
