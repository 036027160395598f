"""Test kits for declared folds, subscribers and live views: a virtual clock, and state in memory instead of Kafka and Redis."""

from streams_app.testing.folds import START_MS, DeadLetter, FoldTester, Record
from streams_app.testing.results import Run, SubscriberDeadLetter, UnseenDeadLettersError
from streams_app.testing.subscribers import SubscriberTester
from streams_app.testing.views import ViewTester

__all__ = [
    "START_MS",
    "DeadLetter",
    "FoldTester",
    "Record",
    "Run",
    "SubscriberDeadLetter",
    "SubscriberTester",
    "UnseenDeadLettersError",
    "ViewTester",
]
