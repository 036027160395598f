"""Sentences about the facts of a group (pure): a verdict, and facts by their labels, in the order in which they are shown.

The verdict answers why the group has not been emitted. A fact with an empty text is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streams_app.folding.core.closing import CONTENT_BOUNDS
from streams_app.formatting import counted, escaped, json_line, shown, shown_key, span, time_text
from streams_app.operations.group_facts import (
    STALLED_MS,
    BoundState,
    GroupDrop,
    GroupExplanation,
    GroupState,
    PartitionReading,
    Reopening,
)

SHOWN_NAMES: Final = 8


def group_sentences(explanation: GroupExplanation) -> list[tuple[str, dict[str, str]]]:
    """Return the verdict and the facts of each partition that has the group; if none has it, those of the group as a whole."""
    if not explanation.states:
        return [_none(explanation)]
    return [_of_state(explanation, state) for state in explanation.states]


def _of_state(explanation: GroupExplanation, state: GroupState) -> tuple[str, dict[str, str]]:
    return verdict_text(explanation.fold, state), {
        "events": _events(state),
        "due": _due(state),
        "quiet": "" if state.auto_quiet is None else str(state.auto_quiet),
        "dropped": "" if state.last_drop is None else dropped_text(state.last_drop),
        "outbox": _outbox(state, explanation.output),
        "read": _read(state.reading),
        "reopens": reopening_text(explanation.reopening),
        "journal": explanation.journal,
    }


def _none(explanation: GroupExplanation) -> tuple[str, dict[str, str]]:
    dropped = "; ".join(map(dropped_text, explanation.drops))
    last = "last record or drop" if dropped else "last record"
    about = "; it was dropped, without a record" if dropped else ""
    return f"{escaped(explanation.group)} is not open in fold {explanation.fold}{about}.", {
        "events": f"none was folded since its {last}, in any of {counted(explanation.partitions, 'partition')}",
        "dropped": dropped,
        "due": "nothing",
        "outbox": "none of its records waits to be sent",
        "try": f"search its events in {explanation.source} (are they keyed by the group?) and in {explanation.dead_letters}, and "
        "see streams_app_lag_events: they may not have been folded yet",
        "reopens": reopening_text(explanation.reopening),
        "journal": explanation.journal,
    }


def dropped_text(drop: GroupDrop) -> str:
    """Describe the last ``streams-app groups drop`` of a group: dropped events, their offsets, and time, user and reason."""
    return (
        f"{counted(drop.events, 'event')} of {drop.source}-{drop.partition}, offsets {drop.first_offset} to {drop.last_offset}, at "
        f"{time_text(drop.at_ms)} by {escaped(drop.by)}: {escaped(drop.reason)}"
    )


def reopening_text(found: Reopening) -> str:
    """Describe how many records were soon followed by a new event of their group, or why this is not known."""
    if found.fault:
        return found.fault
    about = "about " if found.is_estimate else ""
    return (
        f"{about}{found.followed / found.emitted:.1%} of this fold's records were followed by a new event of their group within "
        f"{span(found.within_ms)} ({about}{round(found.followed):,} of {round(found.emitted):,}, at {found.worker})"
    )


def verdict_text(fold: str, state: GroupState) -> str:
    """Say why a group has not been emitted."""
    name = f"{shown_key(state.key)} of fold {fold}"
    due = span(state.due_in_ms or 0)
    return {
        "sealed": f"{name} is closed, but the broker has not acknowledged its record yet.",
        "due": f"{name} is due: its worker emits it in the next pass.",
        "clock-stopped": f"{name} is open, and stays open: no worker advances the clock of its partition.",
        "backlog": f"{name} is open: a backlog is merged, and quiet groups are not closed until it is read.",
        "until-max-hold": f"{name} is open, and due in {due}, when max_hold ends.",
        "until-quiet": f"{name} is open, and due in {due} if no event arrives.",
    }[state.verdict]


def _events(state: GroupState) -> str:
    row, shard = state.open, _shard(state.reading)
    if row is None:
        return "none since its record"
    if not row.events:
        return f"none since its early record, of offset {row.first_offset} of {shard}: if none follows, it has no other"
    names = ", ".join(map(shown, state.names[:SHOWN_NAMES])) + (", ..." if len(state.names) > SHOWN_NAMES else "")
    kept = f"{counted(row.bytes, 'byte')} kept" if row.bytes else f"{counted(row.names, 'changed name')} ({names})"
    ignored = f"; {counted(row.duplicates, 'duplicate')} ignored (dedupe_by)" if row.duplicates else ""
    return (
        f"{counted(row.events, 'event')} at offsets {row.first_offset} to {row.last_offset} of {shard}, the last of "
        f"{time_text(row.last_event_ms)}; {kept}{ignored}"
    )


def _shard(reading: PartitionReading) -> str:
    return f"{reading.source}-{reading.partition}"


def _due(state: GroupState) -> str:
    if state.open is None:
        return "past: the group is sealed"
    if state.verdict == "due":
        return "now; if it is not emitted, see /health/ready of the worker"
    return "; ".join([*_times(state.bounds), *filter(None, map(_content, state.bounds))])


def _times(bounds: Sequence[BoundState]) -> list[str]:
    quiet, hold = bounds[:2]
    period = "as long as its last event says" if quiet.is_by_event else span(quiet.limit or 0)
    is_quiet_first = (quiet.due_in_ms or 0) < (hold.due_in_ms or 0)
    return [
        f"in {_when(quiet)}, once quiet for {period}",
        f"at the latest in {_when(hold)}, once open for {span(hold.limit or 0)}",
        f"at present, {'the quiet period' if is_quiet_first else 'max_hold'} ends first",
    ]


def _when(bound: BoundState) -> str:
    return f"{span(bound.due_in_ms or 0)} ({time_text(bound.due_at_ms or 0)})"


def _content(bound: BoundState) -> str:
    """Describe a bound on the content of a group; "" if the group is far from it."""
    if bound.bound == "close_when":
        return f"an event {closing_event_text(bound)} would close it at once"
    if bound.bound not in CONTENT_BOUNDS or bound.limit is None or bound.present is None:
        return ""
    rule = CONTENT_BOUNDS[bound.bound]
    left = counted(bound.limit - bound.present, f"more {rule.counts}")
    if not rule.is_before:
        return f"{left} would close it at once"
    return f"{left} can be added, then it is closed" if bound.present >= bound.limit // 2 else ""


def closing_event_text(bound: BoundState) -> str:
    """Describe which event closes a group, by ``close_when``."""
    if bound.values is None:
        return "for which close_when returns true"
    rules = (f"{path} = {' or '.join(json_line(value) for value in values)}" for path, values in bound.values.items())
    return f"with {escaped(' or '.join(rules))}"


def _outbox(state: GroupState, output: str) -> str:
    if not state.outbox_records:
        return "none of its records waits to be sent"
    return f"{counted(state.outbox_records, 'record')} of the group, not acknowledged yet by the broker in {output}"


def _read(reading: PartitionReading) -> str:
    fence, lag, hidden = reading.read_to, reading.lag, reading.hidden
    if lag is None:
        how = f"is read up to offset {fence}; the broker does not say where it ends"
    elif hidden:
        behind = counted(lag + hidden, "event")
        how = f"is read up to offset {fence}, {behind} behind its end; an open transaction hides {hidden:,} of them"
    elif lag:
        how = f"is read up to offset {fence}, {counted(lag, 'event')} behind its end"
    else:
        how = f"is read to its end (offset {fence}, lag 0)"
    return f"{_shard(reading)} {how}, last claimed by {escaped(reading.owner) or 'an unknown worker'}; {_clock(reading)}"


def _clock(reading: PartitionReading) -> str:
    """Describe the partition clock, and why it may not advance."""
    behind_ms = reading.clock_behind_ms
    text = f"its clock, which all times above refer to, is at {time_text(reading.clock_ms)}"
    if behind_ms <= -STALLED_MS:
        return (
            f"{text}, {span(-behind_ms)} ahead of the wall clock: the clock of a worker was wrong. It never moves backwards; quiet "
            "periods and holds continue when the wall clock reaches it"
        )
    if behind_ms < STALLED_MS:
        return f"{text}, equal to the wall clock"
    text += f", {span(behind_ms)} behind the wall clock: "
    if reading.lag:
        text += "while a worker catches up, the clock follows the events"
        if reading.holds_quiet_groups:
            text += ", and quiet groups are not closed (backlog = merge)"
        return text + "; if it does not advance, no worker runs"
    return text + "no worker advances it. Is one running, and ready (/health/ready)?"
