"""Counts the records or lines that ``tune`` reads, and the unusable ones (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from streams_app.delivery.rejected_event import RejectedEvent


@dataclass(slots=True)
class ReadCounts:
    """Counts of the records or lines read so far, and of the rejected ones.

    Attributes:
        done: Progress so far, in offsets of a topic, bytes of a file, or events of a journal.
        total: Progress at the end, in the same unit; None if it is unknown.
        rejected: Number of rejected records or lines, by reason.
        examples: Position and detail of the first rejected record or line, by reason.
        remarks: Other remarks that affect the reliability of the curve.
    """

    read: int = 0
    done: int = 0
    total: int | None = None
    rejected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def reject(self, reason: str, where: str, detail: str) -> None:
        """Count an unusable record or line; keep ``where`` and ``detail`` if it is the first one with this reason."""
        self.rejected[reason] += 1
        if reason not in self.examples:
            self.examples[reason] = f"{where}: {detail}"

    def reject_all(self, rejected: list[RejectedEvent], where: Callable[[int], str]) -> None:
        """Count the events that a fold's reader rejected; ``where`` returns the position of an offset, for messages."""
        for one in rejected:
            self.reject(one.reason, where(one.record.offset), one.detail)


def ignore_progress(_: ReadCounts) -> None:
    """Do nothing: a default for ``on_progress``."""
