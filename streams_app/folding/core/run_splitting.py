"""Splits a run of events where a bound closes its group (pure).

A worker builds runs without the open groups, which are in Redis. If a bound closes a group in the middle of a run, the script
returns the open group, and the events are folded again in memory to find where the group closes. One run per event would also be
correct, but a busy group has thousands of events, and one script takes all runs of a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from streams_app.folding.core.chunks import Chunk, GroupRun
from streams_app.folding.core.closing import LEADING, REASONS_BEFORE_AN_EVENT, Bounds
from streams_app.folding.core.detailed_chunks import extend, run_of
from streams_app.folding.core.event import FoldInput, ScoredEvent, event_of, without_values
from streams_app.folding.core.kept_events import size_of_event
from streams_app.folding.core.model import MemoryShard, OpenGroup


def scored_events(events: Iterable[FoldInput], chunk: Chunk) -> dict[bytes, list[tuple[ScoredEvent, int]]]:
    """Return the events of a chunk with their scores, in offset order, by group key; events outside the chunk are ignored."""
    clock = chunk.start_ms
    found = defaultdict(list)
    for fields in events:
        event = event_of(fields)
        if chunk.above < event.offset <= chunk.to:
            clock = max(clock, min(event.timestamp_ms, chunk.time.cap_ms))
            found[event.group].append((event, clock))
    return found


def split_runs(events: Sequence[tuple[ScoredEvent, int]], open_group: OpenGroup | None, bounds: Bounds) -> list[GroupRun]:
    """Cut the events of a group into runs that end wherever a bound closes the group.

    A run does not record which event added a name. Therefore an event before which ``max_changed`` closes the group becomes a run
    of its own. Duplicates (``dedupe_by``) are left out, and counted by the run before them.

    Args:
        open_group: The open group before these events, which is modified; None if the group is not open. Of its ids, those of
            these events are enough. If a script failed before
            it moved the cursor, the group already contains some of the events. These become a run of their own, which the next
            script skips.
    """
    # Values do not matter here, and those of the open group are unknown.
    model, runs = MemoryShard(replace(bounds, aggregates=None)), list[GroupRun]()
    behind = -1 if open_group is None else open_group.last_offset
    is_alone = False
    if open_group is not None:
        model.open[events[0][0].group] = open_group
    for event, score in events:
        if event.offset <= behind:
            goes_on = bool(runs)
        else:
            group = model.open.get(event.group)
            if group is not None and model.is_duplicate(event, score):
                _count_duplicate(runs, event, score, group)
                continue
            closed = model.fold(without_values(event), score)
            # The model has added the event to this object, unless it closed the group before the event.
            is_in_it = group is not None and group.last_offset == event.offset
            goes_on = is_in_it and not is_alone and bool(runs) and runs[-1].last_offset > behind and runs[-1].events > 0
            is_alone = any(entry.reason in REASONS_BEFORE_AN_EVENT or entry.reason == LEADING for entry in closed)
        stamp = event.timestamp_ms if event.timestamp_ms >= 0 else score
        if goes_on:
            extend(runs[-1], event, stamp, score, bounds.aggregates)
        else:
            runs.append(run_of(event, stamp, score, bounds.aggregates))
        if event.json:
            _keep(runs[-1], event, score)
        runs[-1].closes &= event.offset > behind
    return runs


def _keep(run: GroupRun, event: ScoredEvent, score_ms: int) -> None:
    if run.events_kept is None:
        run.events_kept = []
    run.events_kept.append((event, score_ms))
    run.bytes_kept += size_of_event(event.json)


def _count_duplicate(runs: list[GroupRun], event: ScoredEvent, score_ms: int, group: OpenGroup) -> None:
    """Count a duplicate in the last run if that belongs to the open group; otherwise in a run of its own, which has no events."""
    if not runs or (runs[-1].events and runs[-1].last_offset != group.last_offset):
        offset = event.offset
        runs.append(GroupRun(offset, offset, 0, score_ms, score_ms, score_ms, score_ms, {}))
    runs[-1].duplicates += 1
    if not runs[-1].events:
        runs[-1].last_offset, runs[-1].last_score = event.offset, score_ms
