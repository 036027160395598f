"""Which known pauses, as the status of the worker has them, explain that folding or emission stands still (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streams_app.fold import Fold
from streams_app.health.status import Status

BOTH: Final = ("start", "redis", "producer", "kafka-away", "redis-away")
FOLDING: Final = (*BOTH, "claim", "redis-memory")
EMISSION: Final = (*BOTH, "clock-skew")


def explains_folding(folds: Iterable[Fold], status: Status) -> bool:
    """Whether nothing of the source of these folds is folded for a known reason: not even what goes to another fold's topics."""
    return status.is_waiting_for(*FOLDING, *_topics(folds))


def explains_emission(fold: Fold, status: Status) -> bool:
    """Whether nothing of a fold is emitted for a known reason; what its output refuses goes to its dead letters."""
    return status.is_waiting_for(*EMISSION, *_topics([fold]))


def _topics(folds: Iterable[Fold]) -> Iterable[str]:
    return (f"producer:{topic}" for fold in folds for topic in (fold.output, fold.dead_letters))
