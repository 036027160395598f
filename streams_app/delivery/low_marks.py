"""The marks of one partition as its owner knows them."""

from __future__ import annotations

from collections.abc import Mapping

from streams_app.delivery.beginning import Beginning
from streams_app.delivery.commits import Committed
from streams_app.delivery.marks import commit_of, raised
from streams_app.delivery.processor import Mark
from streams_app.delivery.ranges import Served


class LowMarks:
    """The marks of one partition.

    Attributes:
        marks: Name → the mark that is committed, or will be with the next commit; also names without a processor here.
        committed: What the broker holds.
        beginning: The processors whose first mark is not known yet.
    """

    def __init__(self) -> None:
        """Nothing is committed."""
        self.marks: dict[str, Mark] = {}
        self.committed: Committed | None = None
        self.beginning = Beginning()

    def found(self, committed: Committed, marks: Mapping[str, Mark]) -> None:
        """Begins with the commit that the broker holds, and the mark in it for each name."""
        self.marks = dict(marks)
        self.committed = commit_of(marks) if marks else committed

    def note(self, lows: Mapping[str, Mark]) -> Committed:
        """Raises the marks to low watermarks that have just been read; returns what is to be committed."""
        self.marks = raised(self.marks, lows)
        return commit_of(self.marks)

    def went_back(self, name: str, common: int) -> None:
        """The log has lost what stood from an offset on: a mark above it speaks of what is gone."""
        if name in self.marks and self.marks[name].offset > common:
            self.marks[name] = self.marks[name]._replace(offset=common)

    async def low(self, served: Mapping[str, Served]) -> Committed | None:
        """Asks all processors for their marks; returns what may be committed now, None if a processor has no state."""
        lows: dict[str, Mark] = {}
        for name, one in served.items():
            mark = await one.processor.mark()
            if mark is None:
                return None
            lows[name] = mark
        return self.note(lows)
