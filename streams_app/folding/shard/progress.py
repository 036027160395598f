"""How far the owner of a shard has come with a chunk (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from streams_app.delivery.scripts import RefusedError
from streams_app.folding.core.chunks import Chunk, GroupRun
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import Event, FoldEvent
from streams_app.folding.core.model import OpenGroup
from streams_app.folding.core.run_splitting import scored_events, split_runs
from streams_app.folding.store.arguments import GroupPacker, PackedGroups
from streams_app.folding.store.replies import FoldOutcome


class FoldStep(NamedTuple):
    """What one step of folding did.

    Attributes:
        outcome: ``DONE``, ``MORE`` (to be called again), or ``FULL`` (to be called again once the outbox has been sent).
        sealed: Records that went into the outbox.
    """

    outcome: FoldOutcome
    sealed: int = 0


class ChunkProgress:
    """A chunk that is folded part by part: its groups in the order of their bytes, those up to the cursor left out.

    Attributes:
        chunk: What is folded.
        cursor: Member of the last group that Redis has taken; empty before the first.
        digest: See :func:`.digest_of`.
    """

    def __init__(self, chunk: Chunk, cursor: bytes, events: Callable[[], Iterable[Event]], digest: bytes = b"") -> None:
        """Nothing is sent yet.

        Args:
            chunk: To be folded.
            cursor: Where its range stands in Redis; empty: it has not begun.
            events: Reads at least the events of its range again: where bounds fall inside a run it is taken apart.
            digest: Which events its groups have; empty where nobody can say something else.
        """
        self.chunk = chunk
        self.digest = digest
        self.cursor = cursor
        self._members = sorted(chunk.groups)
        self._events = events
        self._at = bisect_right(self._members, cursor)
        self._scored: dict[bytes, list[tuple[FoldEvent, int]]] = {}
        self._apart: dict[bytes, list[GroupRun]] = {}

    def next_groups(self, most: int, packing: GroupPacker, silent_from_ms: int) -> tuple[PackedGroups, bool]:
        """The next groups, packed, and whether they are the last ones.

        Args:
            most: Groups.
            packing: Of the shard.
            silent_from_ms: See :meth:`.ShardClock.silent_from_ms`.
        """
        members = self._members[self._at : self._at + most]
        groups = packing.groups(self.chunk, members, self.chunk.clock_ms, silent_from_ms, self._apart)
        return groups, self._at + len(groups.values) // 3 == len(self._members)

    def detail(self, groups: Mapping[bytes, OpenGroup | None], bounds: Bounds) -> None:
        """Takes the runs of these groups apart from now on.

        Args:
            groups: Each as Redis holds it; None: it is not open.
            bounds: Bounds of the fold.

        Raises:
            RefusedError: Just so they were taken apart before. Else a seal may have closed some of them meanwhile.
        """
        if not self._scored:
            # Of all groups: the events are read once.
            self._scored = scored_events(self._events(), self.chunk)
        apart = {group: split_runs(self._scored[group], open_group, bounds) for group, open_group in groups.items()}
        if apart.items() <= self._apart.items():
            raise RefusedError("fold", "detail")
        self._apart |= apart

    def restart(self) -> None:
        """Goes back to the first group: the range is not under way in Redis."""
        self.cursor, self._at = b"", 0

    def advance_to(self, cursor: bytes) -> None:
        """Goes on behind that group.

        Raises:
            RefusedError: The cursor is behind what was known: Redis went back.
        """
        if cursor < self.cursor:
            raise RefusedError("fold", "range")
        self.cursor = cursor
        self._at = bisect_right(self._members, cursor)
