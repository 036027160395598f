"""What others do with the same calls: FastStream, Taskiq, Dramatiq and Celery, in an environment beside that of this project."""
