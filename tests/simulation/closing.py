"""Checks when groups close from outside: by the events, the times at which each could be read, and the records.

The clock of an event is the newest record time so far. In a record of ``sessions``, two consecutive events are at most the quiet
period apart, and all of them less than the maximum hold. The reason of a record must apply to its last event and to the next event
of its group. The wall clock may close a record only while the next event could not be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from streams_app.fold import Fold
from tests.helpers.virtual_loop import EPOCH_MS

EARLY_MS = 1_000
"""Tolerance for events that an open transaction delays."""

LATE_MS = 10_000
"""Tolerance for slow calls, and for scripts with little work."""

AT_END_MS = EPOCH_MS + 6_000
"""Time at which the reader has reached the end of the log and read live events."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One event of a fold.

    Attributes:
        offset: Offset in the source.
        group: Group of the event.
        score: Newest record time so far, ms.
        is_exact: False from the first event with a future timestamp on: the score then depends on when it was read.
        readable_ms: Time from which it could be read.
        names: Changed names.
        closes: Whether it closes its group.
        size: Size of the event in the kept events.
        quiet_ms: Quiet period after it.
    """

    offset: int
    group: str
    score: int
    is_exact: bool
    readable_ms: int
    names: frozenset[str]
    closes: bool = False
    size: int = 0
    quiet_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class Emitted:
    """One record: its events, its reason, and the time at which the broker first accepted it."""

    events: Sequence[Arrival]
    reason: str
    taken_ms: int

    @property
    def names(self) -> frozenset[str]:
        """Return the names that its events change."""
        return frozenset().union(*(event.names for event in self.events))


def faults(fold: Fold, records: Sequence[Emitted], arrivals: Sequence[Arrival], *, is_calm: bool) -> Iterator[str]:
    """Return every violation of the bounds of records.

    Args:
        fold: Settings of the fold.
        records: Each record once, with all its events.
        arrivals: All events of the fold, in offset order.
        is_calm: There were no faults, and scripts had their usual limits.
    """
    following_of: dict[int, Arrival] = {}
    newest_of: dict[str, Arrival] = {}
    for event in arrivals:
        if event.group in newest_of:
            following_of[newest_of[event.group].offset] = event
        newest_of[event.group] = event
    before_of = {following.offset: offset for offset, following in following_of.items()}
    reasons = {record.events[-1].offset: record.reason for record in records}
    early = {event.offset: reasons.get(before_of.get(event.offset, -1), "none") for event in arrivals}
    for record in records:
        last = record.events[-1]
        following = following_of.get(last.offset)
        found = [*_bounds(fold, record, following), *_early(fold, record, early.get(record.events[0].offset))]
        if (until := following or arrivals[-1]).is_exact:
            found += [*_within(fold, record), *_end(fold, record, following, until.score, is_calm=is_calm)]
        for fault in found:
            yield f"{fold.name} {record.events[0].offset}-{last.offset} {record.reason}: {fault}"


def _early(fold: Fold, record: Emitted, reason_before: str | None) -> Iterator[str]:
    """Whether a record of several events follows the early record of its group."""
    if record.reason == "leading" and (not fold.leading or len(record.events) > 1):
        yield f"{len(record.events)} events in an early record"
    if fold.leading and record.reason not in ("leading", "closed") and reason_before != "leading":
        yield f"no early record before it, but one with the reason {reason_before}"


def _within(fold: Fold, record: Emitted) -> Iterator[str]:
    if fold.backlog != "sessions":
        return
    for event, following in pairwise(record.events):
        if following.score - event.score > event.quiet_ms:
            yield f"{following.score - event.score} ms between {event.offset} and {following.offset}"
    if (open_ms := record.events[-1].score - record.events[0].score) >= fold.max_hold_ms:
        yield f"open for {open_ms} ms"


def _bounds(fold: Fold, record: Emitted, following: Arrival | None) -> Iterator[str]:
    count, most = len(record.events), fold.max_events
    closes = [event.closes for event in record.events]
    if any(closes[:-1]) or closes[-1] != (record.reason == "closed"):
        yield f"closing events at {[event.offset for event in record.events if event.closes]}"
    if most and not closes[-1] and (count > most or (count == most) != (record.reason == "max_events")):
        yield f"{count} events"
    size = sum(event.size for event in record.events)
    if size > fold.max_bytes or (record.reason == "max_bytes" and (not following or size + following.size <= fold.max_bytes)):
        yield f"{size} bytes"
    if fold.keeps_events:
        return
    if count > 1 and len(record.names) > fold.max_changed:
        yield f"{len(record.names)} names"
    if record.reason == "max_changed" and (following is None or len(record.names | following.names) <= fold.max_changed):
        yield f"{len(record.names)} names, and no more than {fold.max_changed} with the next event"


def _end(fold: Fold, record: Emitted, following: Arrival | None, score: int, *, is_calm: bool) -> Iterator[str]:
    if record.reason not in ("quiet", "max_hold"):
        return
    first, last = record.events[0], record.events[-1]
    is_quiet, is_exact = record.reason == "quiet", fold.backlog == "sessions"
    quiet_ms, hold_ms = last.score + last.quiet_ms, first.score + fold.max_hold_ms
    # Events that were late by the maximum hold when they arrived: a former owner may have used the wall clock before an owner that
    # reads them as a backlog. Events that arrived before the first owner are closed by record time alone.
    is_late = not is_calm and not is_quiet and EPOCH_MS < last.readable_ms >= hold_ms
    seen_ms = following.readable_ms if following and is_exact and not is_late else record.taken_ms
    by_record_time = score > quiet_ms if is_quiet else score >= hold_ms
    by_wall_clock = seen_ms > quiet_ms if is_quiet else seen_ms >= hold_ms
    if is_exact and not seen_ms > last.readable_ms:
        by_wall_clock &= not is_quiet and last.readable_ms + EARLY_MS >= first.readable_ms + fold.max_hold_ms
    if not by_record_time and not by_wall_clock:
        yield f"{score - last.score} ms after its last event, {score - first.score} ms after its first one: no limit was reached"
    if is_exact and not by_wall_clock and is_quiet != (quiet_ms < hold_ms):
        yield f"the other limit came first, {abs(quiet_ms - hold_ms)} ms before"
    if is_calm and first.readable_ms > AT_END_MS:
        yield from _counted_from_arrival(fold, record, by_record_time=by_record_time)


def _counted_from_arrival(fold: Fold, record: Emitted, *, by_record_time: bool) -> Iterator[str]:
    """Check quiet period and max hold by the wall clock, which count from the arrival of events regardless of their timestamps."""
    quiet_ms = record.events[-1].readable_ms + record.events[-1].quiet_ms
    hold_ms = record.events[0].readable_ms + fold.max_hold_ms
    early_ms = (quiet_ms if record.reason == "quiet" else hold_ms) - record.taken_ms
    if early_ms > EARLY_MS and not by_record_time:
        yield f"{early_ms} ms too early"
    if record.taken_ms - min(quiet_ms, hold_ms) > LATE_MS:
        yield f"{record.taken_ms - min(quiet_ms, hold_ms)} ms too late"
