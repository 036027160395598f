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
        read: Number of records or lines so far.
        done: Progress: offsets of a topic, bytes of a file, or events of a journal.
        total: Progress at the end; None if unknown.
        rejected: Reason → number of rejected records or lines.
        examples: Reason → place and detail of the first one.
        remarks: Other remarks that affect the reliability of the curve.
    """

    read: int = 0
    done: int = 0
    total: int | None = None
    rejected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def reject(self, reason: str, where: str, detail: str) -> None:
        """Count an unusable record or line."""
        self.rejected[reason] += 1
        if reason not in self.examples:
            self.examples[reason] = f"{where}: {detail}"

    def reject_all(self, rejected: list[RejectedEvent], where: Callable[[int], str]) -> None:
        """Count the events that a fold's reader rejected.

        Args:
            rejected: Rejected events in offset order.
            where: Function from an offset to its description in messages.
        """
        for one in rejected:
            self.reject(one.reason, where(one.record.offset), one.detail)


def ignore_progress(_: ReadCounts) -> None:
    """Ignore the progress of a read."""
