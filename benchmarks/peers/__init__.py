"""The same calls by FastStream, Taskiq, Dramatiq and Celery, in a separate environment."""
