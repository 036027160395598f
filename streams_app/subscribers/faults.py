"""What a subscriber waits for when Kafka or Redis does not do what it was asked."""

from __future__ import annotations

from aiokafka.errors import KafkaError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from redis.exceptions import OutOfMemoryError

from streams_app.errors import text_of


def fault_of(error: BaseException) -> str:
    """What is to be waited for after an error, as the metric ``streams_app_waiting_for`` has it."""
    if isinstance(error, KafkaError):
        return "broker"
    return "redis-memory" if isinstance(error, OutOfMemoryError) else "redis"


def fault_of_letters(topic: str, error: BaseException) -> str:
    """Why a topic has not acknowledged dead letters, in words, with what to do where that is known."""
    if isinstance(error, UnknownTopicOrPartitionError):
        return f"its dead-letter topic {topic!r} does not exist: create it with `streams-app topics create`"
    if isinstance(error, TopicAuthorizationFailedError):
        return f"its dead-letter topic {topic!r} must not be written to: this worker needs the right WRITE on it"
    return f"its dead-letter topic {topic!r} does not acknowledge dead letters: {text_of(error)}"
