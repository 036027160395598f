"""Cuts a fetched range into chunks, and determines which groups of a chunk the next script call folds (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, cast

from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.scripts import FencedError
from streams_app.folding.core.chunks import Chunk, ChunkCutter, GroupRun
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.detailed_chunks import DetailedChunkCutter
from streams_app.folding.core.event import DetailedEvent, FoldInput, ScoredEvent
from streams_app.folding.core.kept_chunks import KeptChunkCutter, split_kept_runs
from streams_app.folding.core.model import OpenGroup
from streams_app.folding.core.native_chunks import NativeChunkCutter
from streams_app.folding.core.run_splitting import scored_events, split_runs
from streams_app.folding.core.shard_clock import RangeTime, ShardClock
from streams_app.folding.shard.quiet_period import ShardQuietPeriod, minutes_of
from streams_app.folding.store.arguments import GroupPacker, PackedGroups
from streams_app.folding.store.replies import FoldOutcome, RangeInProgress
from streams_app.native import is_native


class FoldStep(NamedTuple):
    """The result of :meth:`.Shard.fold_once`, which folds some groups of a chunk.

    Attributes:
        outcome: ``DONE``: the chunk is folded. ``MORE``: some groups are not folded yet; call again. ``FULL``: nothing was folded,
            because the outbox is full or the definition of the fold has changed; call again once the outbox was sent and, after a
            change, the groups of the former definition were emitted.
        duplicates: Number of events that were ignored, because their group had their id.
    """

    outcome: FoldOutcome
    sealed: int = 0
    duplicates: int = 0


class ChunkProgress:
    """How far a chunk is folded. Its groups are folded in the order of their bytes, from the first one after the cursor on.

    Attributes:
        cursor: Last group that Redis has folded; empty before the first group.
        digest: Digest of its groups, see :func:`.digest_of`; empty if every worker reads the same events from the records.
    """

    def __init__(self, chunk: Chunk, cursor: bytes, events: Callable[[], Iterable[FoldInput]], digest: bytes = b"") -> None:
        """Initialize the progress; ``events`` reads at least the events of the chunk again, for runs that must be split."""
        self.chunk = chunk
        self.digest = digest
        self.cursor = cursor
        self._members = sorted(chunk.groups)
        self._events = events
        self._at = bisect_right(self._members, cursor)
        self._scored: dict[bytes, list[tuple[ScoredEvent, int]]] = {}
        self._apart: dict[bytes, list[GroupRun]] = {}

    def next_groups(
        self, most: int, packing: GroupPacker, silent_from_ms: int, *, may_pack: bool = False
    ) -> tuple[PackedGroups, bool]:
        """Return the next groups, at most ``most``, packed for ``fold.lua``, and whether they are the last ones of the chunk.

        Args:
            may_pack: See :meth:`.GroupPacker.groups`.
        """
        members = self._members[self._at : self._at + most]
        groups = packing.groups(self.chunk, members, self.chunk.clock_ms, silent_from_ms, self._apart, may_pack=may_pack)
        return groups, self._at + groups.count == len(self._members)

    def detail(self, groups: Mapping[bytes, OpenGroup | None], bounds: Bounds) -> None:
        """Split the runs of those groups for which ``fold.lua`` requires it; :meth:`next_groups` then returns the split runs.

        A run is split wherever a bound closes its group, and duplicates are left out.

        Raises:
            FencedError: The runs are already split in this way, but the script requires it once more. The next call would have the
                same result, so the shard must be claimed again. No error is raised if the runs must be split differently now, for
                example because a seal has closed one of the groups.
        """
        if bounds.max_bytes and not bounds.dedupes:
            own = self.chunk.groups
            apart = {group: split_kept_runs(own[group], open_group, bounds) for group, open_group in groups.items()}
        else:
            # For all groups, because the events are read only once.
            self._scored = self._scored or scored_events(self._events(), self.chunk)
            apart = {group: split_runs(self._scored[group], open_group, bounds) for group, open_group in groups.items()}
        if apart.items() <= self._apart.items():
            raise FencedError("fold", "detail")
        self._apart |= apart

    def forget_split_runs(self) -> None:
        """Forget how runs were split: of a group that was closed since, duplicates were left out that are none any more."""
        self._apart.clear()

    def restart(self) -> None:
        self.cursor, self._at = b"", 0

    def advance_to(self, cursor: bytes) -> None:
        """Continue after the group ``cursor``, the last one that Redis has folded.

        Raises:
            FencedError: The cursor is behind the expected one, because Redis was rolled back.
        """
        if cursor < self.cursor:
            raise FencedError("fold", "range")
        self.cursor = cursor
        self._at = bisect_right(self._members, cursor)


def chunks_of(
    events: Iterable[FoldInput], fence: int, end: int, begun: RangeInProgress | None, clock: ShardClock, bounds: Bounds,
    view: ReaderView, now_ms: int, *, keeps_values: bool, quiet_period: ShardQuietPeriod | None = None,
) -> Iterator[Chunk]:  # fmt: skip
    """Cut the events of a range into chunks. Each chunk is cut only when it is requested, by the clock as it is then.

    Args:
        begun: The part of the range that another owner has begun; None if there is none. It becomes one chunk, with the stored
            times.
        quiet_period: The quiet period of the shard, if it sets itself. It may change after each minute of the events.
    """
    cutter_of = KeptChunkCutter if bounds.max_bytes else DetailedChunkCutter if bounds.reads_details else ChunkCutter
    cut = partial(cutter_of, bounds=bounds, keeps_values=keeps_values)
    if begun is not None:
        listed = list(events)
        first = cut(_read((event for event in listed if event[0] <= begun.to), quiet_period), fence, begun.to)
        yield first.next(_begun(begun.time, quiet_period), clock.start_ms(begun.time), is_whole=True)
        events, fence = (event for event in listed if event[0] > begun.to), begun.to
    time = clock.range_time(view, now_ms)
    for part, to in [(events, end)] if quiet_period is None else minutes_of(events, end, now_ms):
        cutter = NativeChunkCutter(part, fence, to, bounds) if is_native(part) else cut(_read(part, quiet_period), fence, to)
        while cutter.above < to:
            yield cutter.next(_begun(time, quiet_period), clock.start_ms(time))
        fence = to


def _begun(time: RangeTime, quiet_period: ShardQuietPeriod | None) -> RangeTime:
    return time if quiet_period is None else quiet_period.begin(time)


def _read(events: Iterable[FoldInput], quiet_period: ShardQuietPeriod | None) -> Iterable[FoldInput]:
    return events if quiet_period is None else quiet_period.read(cast("Iterable[DetailedEvent]", events))


SCRIPT_WORK: Final = 4_000
"""Work after which ``fold.lua`` stops by itself, in microseconds of Redis time, by its own estimate."""

FIRST_GROUPS: Final = 300
MAX_GROUPS: Final = 2_500
"""Initial and maximum number of groups per script call. They are limited because groups that a script does not fold must be sent
again."""


class ScriptSizing:
    """Determines from earlier script calls how many groups to send to the next one."""

    def __init__(self) -> None:
        self.groups = FIRST_GROUPS

    def learn(self, taken: int, work: int) -> None:
        """Learn from a call that folded ``taken`` groups, for which Redis needed ``work`` microseconds."""
        if taken:
            self.groups = max(1, min(MAX_GROUPS, 2 * self.groups, taken * SCRIPT_WORK // max(work, 1) + 1))
