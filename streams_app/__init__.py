"""Event folding for Kafka: a storm of update events in, one folded record per group out.

Public names: :class:`Fold`, :func:`create_app`, :class:`Settings` with :class:`KafkaSettings`, :class:`RedisSettings`,
:class:`ReadStoreSettings`, :class:`LiveView`, :class:`LiveServer` and :class:`JournalSettings`; :class:`JournalReader` with
:class:`Entry`, :class:`Gap` and :class:`JournalGoneError`; :class:`QuietPeriod` and :class:`AutoQuietPeriod`.
Of events and subscribers: :class:`Event`, :class:`Events`, :class:`Catalogue`, :func:`subscriber`, :func:`records_of`,
:class:`Retries`, :class:`Received`, :class:`Retry`, :class:`Reject`, :class:`EventsSettings`,
:class:`SubscriberSettings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streams_app.errors import JournalGoneError
from streams_app.events.declaration import Event
from streams_app.events.publishing import Events
from streams_app.fold import Fold
from streams_app.quiet_period import AutoQuietPeriod, QuietPeriod
from streams_app.settings import (
    EventsSettings,
    JournalSettings,
    KafkaSettings,
    LiveServer,
    LiveView,
    ReadStoreSettings,
    RedisSettings,
    Settings,
    SubscriberSettings,
)
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.received import Received, Reject, Retry
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.declaration.subscriber import records_of, subscriber

if TYPE_CHECKING:
    from streams_app.journal.reading.entries import Entry, Gap
    from streams_app.journal.reading.reader import JournalReader
    from streams_app.worker.faust_app import FoldingApp

__all__ = [
    "AutoQuietPeriod",
    "Catalogue",
    "Entry",
    "Event",
    "Events",
    "EventsSettings",
    "Fold",
    "Gap",
    "JournalGoneError",
    "JournalReader",
    "JournalSettings",
    "KafkaSettings",
    "LiveServer",
    "LiveView",
    "QuietPeriod",
    "ReadStoreSettings",
    "Received",
    "RedisSettings",
    "Reject",
    "Retries",
    "Retry",
    "Settings",
    "SubscriberSettings",
    "create_app",
    "records_of",
    "subscriber",
]


def __getattr__(name: str) -> Any:
    # Imported late, because readers import the client of Redis, which a module that only declares folds does not need.
    if name == "JournalReader":
        from streams_app.journal.reading.reader import JournalReader

        return JournalReader
    if name in ("Entry", "Gap"):
        from streams_app.journal.reading import entries

        return getattr(entries, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def create_app(settings: Settings) -> FoldingApp:
    """Create the Faust application that runs the given settings, see :func:`streams_app.worker.faust_app.create_app`."""
    # Imported late: Faust and aiokafka take a second to import, and a module that only declares folds does not need them.
    from streams_app.worker.faust_app import create_app as create

    return create(settings)
