"""How far the owner of a shard has come with a chunk (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.scripts import FencedError
from streams_app.folding.core.chunks import Chunk, ChunkCutter, GroupRun
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import Event, FoldEvent
from streams_app.folding.core.model import OpenGroup
from streams_app.folding.core.run_splitting import scored_events, split_runs
from streams_app.folding.core.shard_clock import ShardClock
from streams_app.folding.store.arguments import GroupPacker, PackedGroups
from streams_app.folding.store.replies import FoldOutcome, RangeInProgress


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
            FencedError: Just so they were taken apart before. Else a seal may have closed some of them meanwhile.
        """
        if not self._scored:
            # Of all groups: the events are read once.
            self._scored = scored_events(self._events(), self.chunk)
        apart = {group: split_runs(self._scored[group], open_group, bounds) for group, open_group in groups.items()}
        if apart.items() <= self._apart.items():
            raise FencedError("fold", "detail")
        self._apart |= apart

    def restart(self) -> None:
        """Goes back to the first group: the range is not under way in Redis."""
        self.cursor, self._at = b"", 0

    def advance_to(self, cursor: bytes) -> None:
        """Goes on behind that group.

        Raises:
            FencedError: The cursor is behind what was known: Redis went back.
        """
        if cursor < self.cursor:
            raise FencedError("fold", "range")
        self.cursor = cursor
        self._at = bisect_right(self._members, cursor)


def chunks_of(
    events: Iterable[Event], fence: int, end: int, begun: RangeInProgress | None, clock: ShardClock, bounds: Bounds,
    view: ReaderView, now_ms: int, *, keeps_values: bool,
) -> Iterator[Chunk]:  # fmt: skip
    """Cuts the events of a range, each chunk as it is wanted: by then those before are folded, and the clock has moved.

    Args:
        events: Events of the range in offset order, all above the fence.
        fence: Highest offset folded.
        end: Offset of the fence after the range; not below the end of ``begun``.
        begun: What another owner has begun of the range. It is one chunk, with the time that its scores were made with.
        clock: Clock of the shard.
        bounds: Bounds of the fold.
        view: What the fetch that brought the events said.
        now_ms: Wall clock.
        keeps_values: The last value of each name is wanted.
    """
    cut = partial(ChunkCutter, bounds=bounds, keeps_values=keeps_values)
    if begun is not None:
        listed = list(events)
        first = cut((event for event in listed if event[0] <= begun.to), fence, begun.to)
        yield first.next(begun.time, clock.start_ms(begun.time), is_whole=True)
        events, fence = (event for event in listed if event[0] > begun.to), begun.to
    time = clock.range_time(view, now_ms)
    cutter = cut(events, fence, end)
    while cutter.above < end:
        yield cutter.next(time, clock.start_ms(time))


SCRIPT_WORK: Final = 4_000
"""What a script does before it ends by itself, in microseconds of Redis as ``fold.lua`` reckons them."""

FIRST_GROUPS: Final = 300
MOST_GROUPS: Final = 2_500
"""How many groups are sent at first, and at most: what a script does not take was sent in vain, and is sent again."""


class ScriptSizing:
    """Learns from scripts how many groups the next one can take.

    Attributes:
        groups: Number of groups to be sent to the next script.
    """

    def __init__(self) -> None:
        self.groups = FIRST_GROUPS

    def learn(self, taken: int, work: int) -> None:
        """Learns from a script that took so many groups with so much work, in microseconds of Redis."""
        if taken:
            self.groups = max(1, min(MOST_GROUPS, 2 * self.groups, taken * SCRIPT_WORK // max(work, 1) + 1))
