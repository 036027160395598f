"""Actions of the console, without servers."""
