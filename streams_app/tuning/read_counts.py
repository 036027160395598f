"""What was read of a range, and what of it could not be used (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from streams_app.delivery.rejected_event import RejectedEvent


@dataclass(slots=True)
class ReadCounts:
    """Counts while a range is read.

    Attributes:
        read: Records or lines so far.
        done: How far it is: offsets of a topic, bytes of a file.
        total: How far it goes; None where nobody knows.
        refused: Reason → how many.
        examples: Reason → where the first one stands, and what is wrong with it.
        notes: What else somebody who trusts the curve should know.
    """

    read: int = 0
    done: int = 0
    total: int | None = None
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def refuse(self, reason: str, where: str, detail: str) -> None:
        """Counts one that cannot be used."""
        self.refused[reason] += 1
        if reason not in self.examples:
            self.examples[reason] = f"{where}: {detail}"

    def refuse_all(self, refused: list[RejectedEvent], where: Callable[[int], str]) -> None:
        """Counts what a reader of a fold has refused.

        Args:
            refused: In the order of their offsets.
            where: Offset → where that is, for people.
        """
        for one in refused:
            self.refuse(one.reason, where(one.record.offset), one.detail)


def ignore_progress(_: ReadCounts) -> None:
    """Looks at the progress of a read where nobody wants to see it."""
