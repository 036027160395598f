"""What a subscriber waits for when Kafka or Redis does not do what it was asked."""

from __future__ import annotations

from aiokafka.errors import KafkaError
from redis.exceptions import OutOfMemoryError


def fault_of(error: BaseException) -> str:
    """What is to be waited for after an error, as the metric ``streams_app_waiting_for`` has it."""
    if isinstance(error, KafkaError):
        return "broker"
    return "redis-memory" if isinstance(error, OutOfMemoryError) else "redis"
