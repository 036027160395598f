"""Everything a worker needs to know: ``streams.toml`` and the environment as frozen models."""

from streams_app.settings.sections import (
    HttpSettings,
    KafkaSettings,
    Limits,
    ReadStoreSettings,
    RedisSettings,
    Settings,
    WorkerSettings,
    redacted,
)

__all__ = [
    "HttpSettings",
    "KafkaSettings",
    "Limits",
    "ReadStoreSettings",
    "RedisSettings",
    "Settings",
    "WorkerSettings",
    "redacted",
]
