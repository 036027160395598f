"""How a shard cuts a fetched range into chunks (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from streams_app.delivery.partition_clock import ReaderView
from streams_app.folding.core.chunks import Chunk, ChunkCutter
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import Event
from streams_app.folding.core.shard_clock import ShardClock
from streams_app.folding.store.replies import RangeInProgress


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
