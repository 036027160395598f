"""Takes runs apart where a bound falls inside them (pure).

Only Redis knows what is open: it says so of the groups concerned, and folding their events once more in memory shows where they
close. A run for each event would do as well, but a busy group has thousands of them, and one script takes all runs of a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from streams_app.folding.core.chunks import Chunk, GroupRun
from streams_app.folding.core.closing import REASONS_BEFORE_AN_EVENT, Bounds
from streams_app.folding.core.event import Event, FoldEvent
from streams_app.folding.core.model import MemoryShard, OpenGroup


def scored_events(events: Iterable[Event], chunk: Chunk) -> dict[bytes, list[tuple[FoldEvent, int]]]:
    """The events of a chunk with their scores, group by group.

    Args:
        events: At least those the chunk was made of, in offset order.
        chunk: Made of them.
    """
    clock = chunk.start_ms
    found = defaultdict(list)
    for fields in events:
        event = FoldEvent(*fields)
        if chunk.above < event.offset <= chunk.to:
            clock = max(clock, min(event.timestamp_ms, chunk.time.cap_ms))
            found[event.group].append((event, clock))
    return found


def split_runs(events: Sequence[tuple[FoldEvent, int]], open_group: OpenGroup | None, bounds: Bounds) -> list[GroupRun]:
    """The events of a group as runs with no bound inside.

    Names of a whole run do not tell which event they came with: one that closes its group by its names is a run of its own.

    Args:
        events: Of one group, with their scores.
        open_group: The open group before these events; it is modified. It may already contain some of them, because a script
            failed before it moved the cursor: these become a run of their own, which the next script skips.
        bounds: Bounds of the fold.
    """
    model, runs = MemoryShard(bounds), list[GroupRun]()
    behind, names = -1 if open_group is None else open_group.last_offset, dict[str, Any]()
    is_alone = False
    if open_group is not None:
        model.open[events[0][0].group] = open_group
    for event, score in events:
        if event.offset <= behind:
            goes_on = bool(runs)
        else:
            group = model.open.get(event.group)
            # Which values the names have does not matter here, and JSON may not have them.
            named = event if isinstance(event.names, int) else event._replace(names=dict.fromkeys(event.names))
            closed = model.fold(named, score)
            # Of a group that closed before the event the last offset is another one.
            is_in_it = group is not None and group.last_offset == event.offset
            goes_on = is_in_it and not is_alone and bool(runs) and runs[-1].last_offset > behind
            is_alone = any(entry.reason in REASONS_BEFORE_AN_EVENT for entry in closed)
        stamp = event.timestamp_ms if event.timestamp_ms >= 0 else score
        if goes_on:
            run = runs[-1]
            run.last_offset, run.last_score, run.events = event.offset, score, run.events + 1
            run.low_ms, run.high_ms = min(run.low_ms, stamp), max(run.high_ms, stamp)
            names.update(event.changed)
        else:
            names = dict(event.changed)
            runs.append(GroupRun(event.offset, event.offset, 1, stamp, stamp, score, score, names))
    return runs
