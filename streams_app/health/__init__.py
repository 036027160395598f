"""Health of a worker: status, metrics, HTTP pages, outages of dependencies, and progress."""
