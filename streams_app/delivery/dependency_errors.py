"""Errors of an unavailable Kafka or Redis, after which the caller waits and retries."""

from __future__ import annotations

from typing import Final

from aiokafka.errors import KafkaError
from redis.exceptions import OutOfMemoryError

from streams_app.redis_access.client import REDIS_ERRORS

DEPENDENCY_ERRORS: Final = (KafkaError, *REDIS_ERRORS, TimeoutError)


def waiting_for_label(error: BaseException) -> str:
    """Return the dependency for which an error makes the worker wait; every error but a ``KafkaError`` counts as one of Redis."""
    if isinstance(error, KafkaError):
        return "broker"
    return "redis-memory" if isinstance(error, OutOfMemoryError) else "redis"
