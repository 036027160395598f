"""Settings of an application: ``streams.toml`` and the environment as immutable models."""

from streams_app.settings.application import Settings
from streams_app.settings.base import UrlParts, has_late_at, redacted
from streams_app.settings.console import ConsoleSettings
from streams_app.settings.journals import JournalSettings
from streams_app.settings.live import LiveServer, LiveView
from streams_app.settings.read_stores import ReadStoreSettings
from streams_app.settings.redis import RedisSettings
from streams_app.settings.schema_registry import SchemaRegistrySettings
from streams_app.settings.secret_files import read_secret
from streams_app.settings.sections import (
    HttpSettings,
    KafkaSettings,
    Limits,
    TracingSettings,
    WorkerSettings,
)
from streams_app.settings.subscribers import EventsSettings, SubscriberSettings

__all__ = [
    "ConsoleSettings",
    "EventsSettings",
    "HttpSettings",
    "JournalSettings",
    "KafkaSettings",
    "Limits",
    "LiveServer",
    "LiveView",
    "ReadStoreSettings",
    "RedisSettings",
    "SchemaRegistrySettings",
    "Settings",
    "SubscriberSettings",
    "TracingSettings",
    "UrlParts",
    "WorkerSettings",
    "has_late_at",
    "read_secret",
    "redacted",
]
