"""Text of ``streams-app groups explain``: a verdict on a group that has not been emitted, and labelled lines of facts (pure).

The verdict is a sentence that answers why the group has not been emitted. The lines have a fixed order; those without a fact are
omitted.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from streams_app.fold import Fold, QuietPeriod
from streams_app.folding.core.closing import CONTENT_BOUNDS, Bounds
from streams_app.folding.store.drop_request import DropAnswer
from streams_app.formatting import counted, escaped, json_line, shown, shown_group, shown_key, span, time_text
from streams_app.tuning.live import live_metrics_in

if TYPE_CHECKING:
    from streams_app.operations.groups import StoredShard
    from streams_app.operations.worker_pages import Page

SHOWN_NAMES: Final = 8
STALLED_MS: Final = 10_000
"""Minimum difference between partition clock and wall clock, in ms, for the text to mention the difference."""

WIDEST: Final = 120
"""Maximum width of the text in columns, because longer lines are hard to read."""

LABEL: Final = 8


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """State of a group in one shard.

    Attributes:
        member: The group key, as stored in Redis.
        row: Row of the group, see :func:`streams_app.operations.groups.rows_of`; None if the group is not open.
        names: Changed names of the group. If the fold keeps whole events, these are names of internal fields instead; ignore them.
        waiting: Number of records of the group among the first 10 000 in the outbox.
    """

    shard: StoredShard
    member: bytes
    row: Mapping[str, Any] | None
    names: tuple[str, ...]
    waiting: int


def describe(
    found: FoundGroup,
    fold: Fold,
    meta: Mapping[bytes, bytes],
    end: tuple[int, int] | None,
    reopening: str,
    now_ms: int,
    width: int,
    journal: str = "",
    dropped: str = "",
) -> str:
    """Return text about a group that is open or waits in the outbox: why it has not been emitted, then one line for each fact.

    Args:
        meta: Redis hash ``meta`` of the shard.
        end: Last stable offset of the partition and its high watermark; None: unknown.
        reopening: How often groups reopen, from :func:`reopening_text`.
        journal: Command that shows all events of the group; empty if no journal has the events.
        dropped: Description of the last ``streams-app groups drop`` of the group, from :func:`dropped_text`. Empty if none is
            stored; it is stored for at least a week.
    """
    fence = int(meta.get(b"fence", b"-1"))
    lag = None if end is None else max(0, end[0] - fence - 1)
    hidden = 0 if end is None else end[1] - end[0]
    lines = {
        "events": _events(found),
        "due": _due(found, fold, now_ms),
        "dropped": dropped,
        "outbox": _outbox(found, fold),
        "read": _read(found.shard, fold, meta, fence, lag, hidden, now_ms),
        "again": reopening,
        "journal": journal,
    }
    return lay_out(_verdict(found, fold, lag, now_ms), lines, width)


def dropped_text(shard: StoredShard, answer: DropAnswer) -> str:
    """Describe the last ``streams-app groups drop`` of a group: dropped events, their offsets, and time, user and reason."""
    request = answer.request
    return (
        f"{counted(answer.events, 'event')} of {shard}, offsets {answer.first_offset} to {answer.last_offset}, at "
        f"{time_text(answer.clock_ms)} by {escaped(request.by)}: {escaped(request.reason)}"
    )


def describe_none(
    group: str, fold: Fold, partitions: int, reopening: str, width: int, journal: str = "", dropped: str = ""
) -> str:  # fmt: skip
    """Return text about a group that is neither open nor in the outbox: a sentence that says so, then one line for each fact."""
    last = "last record or drop" if dropped else "last record"
    lines = {
        "events": f"none was folded since its {last}, in any of {counted(partitions, 'partition')}",
        "dropped": dropped,
        "due": "nothing",
        "outbox": "none of its records waits to be sent",
        "try": f"search its events in {fold.source} (are they keyed by the group?) and in {fold.dead_letters}, and see "
        "streams_app_lag_events: they may not have been folded yet",
        "again": reopening,
        "journal": journal,
    }
    about = "; it was dropped, without a record" if dropped else ""
    return lay_out(f"{escaped(group)} is not open in fold {fold.name}{about}.", lines, width)


def reopening_text(page: Page | None, fold: Fold) -> str:
    """Describe how many records were soon followed by a new event of their group, as counted by a worker since its start."""
    if page is None:
        return "not known: http.port is 0, so no worker can be asked"
    if page.text is None:
        return f"not known: {page.url} {page.fault}"
    try:
        live_metrics = live_metrics_in(page.text, fold.name)
    except (ValueError, KeyError):
        return f"not known: the worker at {page.url} is of another version"
    if live_metrics is None:
        return f"not known: the worker at {page.url} does not have this fold"
    if not live_metrics.emitted:
        return f"not known yet: the worker at {page.url} has emitted no record of this fold"
    split, emitted = min(live_metrics.split, live_metrics.emitted), live_metrics.emitted
    about = "about " if live_metrics.share < 1 else ""
    return (
        f"{about}{split / emitted:.1%} of this fold's records were followed by a new event of their group within "
        f"{span(fold.quiet_period_ms)} ({about}{round(split):,} of {round(emitted):,}, at {page.url})"
    )


def lay_out(verdict: str, lines: Mapping[str, str], width: int) -> str:
    """Return a verdict and the lines, each after its label, wrapped to ``width`` columns; lines without text are omitted."""
    columns = max(2 * LABEL, min(width, WIDEST))
    return "\n".join(
        [
            *_wrapped(verdict, columns, ""),
            *(line for label, text in lines.items() if text for line in _wrapped(text, columns, f"  {label}")),
        ]
    )


def _wrapped(text: str, columns: int, label: str) -> Iterable[str]:
    begin = f"{label:<{LABEL + 2}}" if label else ""
    return textwrap.wrap(text, columns, initial_indent=begin, subsequent_indent=" " * len(begin), break_on_hyphens=False)


def _verdict(found: FoundGroup, fold: Fold, lag: int | None, now_ms: int) -> str:
    row, behind_ms = found.row, now_ms - found.shard.clock_ms
    if row is None:
        return f"{shown_group(found.member)} of fold {fold.name} is closed, but the broker has not acknowledged its record yet."
    name = f"{shown_key(row['key'])} of fold {fold.name}"
    quiet, hold = row["quiet_in_ms"], row["hold_in_ms"]
    if min(quiet, hold) <= 0:
        return f"{name} is due: its worker emits it in the next pass."
    if behind_ms >= STALLED_MS and not lag:
        return f"{name} is open, and stays open: no worker advances the clock of its partition."
    if behind_ms >= fold.quiet_period_ms and fold.backlog == "merge":
        return f"{name} is open: a backlog is merged, and quiet groups are not closed until it is read."
    if hold <= quiet:
        return f"{name} is open, and due in {span(hold + _ahead_ms(found, now_ms))}, when max_hold ends."
    return f"{name} is open, and due in {span(quiet + _ahead_ms(found, now_ms))} if no event arrives."


def _events(found: FoundGroup) -> str:
    row = found.row
    if row is None:
        return "none since its record"
    if not row["events"]:
        return f"none since its early record, of offset {row['first_offset']} of {found.shard}: if none follows, it has no other"
    names = ", ".join(map(shown, found.names[:SHOWN_NAMES])) + (", ..." if len(found.names) > SHOWN_NAMES else "")
    kept = f"{counted(row['bytes'], 'byte')} kept" if row["bytes"] else f"{counted(row['names'], 'changed name')} ({names})"
    return (
        f"{counted(row['events'], 'event')} at offsets {row['first_offset']} to {row['last_offset']} of {found.shard}, the last of "
        f"{time_text(row['last_event_ms'])}; {kept}"
    )


def _ahead_ms(found: FoundGroup, now_ms: int) -> int:
    """Return how far, in ms, the partition clock is ahead of the wall clock; 0 if less than 10 s.

    The partition clock does not advance until the wall clock has reached it, so groups close that much later.
    """
    ahead_ms = found.shard.clock_ms - now_ms
    return ahead_ms if ahead_ms >= STALLED_MS else 0


def _due(found: FoundGroup, fold: Fold, now_ms: int) -> str:
    row = found.row
    if row is None:
        return "past: the group is sealed"
    quiet, hold, clock_ms = row["quiet_in_ms"], row["hold_in_ms"], found.shard.clock_ms
    if min(quiet, hold) <= 0:
        return "now; if it is not emitted, see /health/ready of the worker"
    ahead_ms = _ahead_ms(found, now_ms)
    parts = [
        f"in {span(quiet + ahead_ms)} ({time_text(clock_ms + quiet)}), once quiet for {_quiet_text(fold)}",
        f"at the latest in {span(hold + ahead_ms)} ({time_text(clock_ms + hold)}), once open for {span(fold.max_hold_ms)}",
        f"at present, {'the quiet period' if quiet < hold else 'max_hold'} ends first",
    ]
    bounds = Bounds.of(fold)
    for name, bound in CONTENT_BOUNDS.items():
        most, present = getattr(bounds, name), row[f"{bound.counts}s"]
        left = counted(most - present, f"more {bound.counts}")
        if most and bound.is_before and present >= most // 2:
            parts.append(f"{left} can be added, then it is closed")
        elif most and not bound.is_before:
            parts.append(f"{left} would close it at once")
    if fold.close_when is not None:
        parts.append(f"an event {_closing_event(fold)} would close it at once")
    return "; ".join(parts)


def _quiet_text(fold: Fold) -> str:
    """Describe how long a group must be without events before it closes."""
    if isinstance(fold.quiet_period, QuietPeriod):
        return "as long as its last event says"
    return span(fold.quiet_period_ms)


def _closing_event(fold: Fold) -> str:
    """Describe which event closes a group, by ``close_when``."""
    if fold.close_when is None or callable(fold.close_when):
        return "for which close_when returns true"
    rules = (f"{path} = {' or '.join(json_line(value) for value in values)}" for path, values in fold.close_when.items())
    return f"with {escaped(' or '.join(rules))}"


def _outbox(found: FoundGroup, fold: Fold) -> str:
    if not found.waiting:
        return "none of its records waits to be sent"
    return f"{counted(found.waiting, 'record')} of the group, not acknowledged yet by the broker in {fold.output}"


def _read(
    shard: StoredShard, fold: Fold, meta: Mapping[bytes, bytes], fence: int, lag: int | None, hidden: int, now_ms: int
) -> str:
    owner = escaped(meta.get(b"owner", b"").decode("utf-8", "backslashreplace")) or "an unknown worker"
    if lag is None:
        how = f"is read up to offset {fence}; the broker does not say where it ends"
    elif hidden:
        behind = counted(lag + hidden, "event")
        how = f"is read up to offset {fence}, {behind} behind its end; an open transaction hides {hidden:,} of them"
    elif lag:
        how = f"is read up to offset {fence}, {counted(lag, 'event')} behind its end"
    else:
        how = f"is read to its end (offset {fence}, lag 0)"
    return f"{shard} {how}, last claimed by {owner}; {_clock(shard, fold, lag, now_ms)}"


def _clock(shard: StoredShard, fold: Fold, lag: int | None, now_ms: int) -> str:
    """Describe the partition clock, and why it may not advance."""
    behind_ms = now_ms - shard.clock_ms
    text = f"its clock, which all times above refer to, is at {time_text(shard.clock_ms)}"
    if behind_ms <= -STALLED_MS:
        return (
            f"{text}, {span(-behind_ms)} ahead of the wall clock: the clock of a worker was wrong. It never moves backwards; quiet "
            "periods and holds continue when the wall clock reaches it"
        )
    if behind_ms < STALLED_MS:
        return f"{text}, equal to the wall clock"
    text += f", {span(behind_ms)} behind the wall clock: "
    if lag:
        text += "while a worker catches up, the clock follows the events"
        if fold.backlog == "merge" and behind_ms >= fold.quiet_period_ms:
            text += ", and quiet groups are not closed (backlog = merge)"
        return text + "; if it does not advance, no worker runs"
    return text + "no worker advances it. Is one running, and ready (/health/ready)?"
