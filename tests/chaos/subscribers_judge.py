"""The judge of subscribers: uses only the produced events, calls, dead letters and commits; never Redis, never logs (pure)."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple

from tests.chaos.subscribed import HANGS, HANGS_AT_FIRST, KILLS, KILLS_LATE, fate_in, is_failing, is_rejected

NEVER: Final = sys.maxsize
KEYS: Final = 50
"""Number of customers; the number of an event determines its customer."""

Place = tuple[int, int]
"""Partition and offset."""


class Row(NamedTuple):
    """A row that a function has written."""

    pid: int
    subscriber: str
    event_id: str
    number: int
    partition: int
    offset: int
    attempt: int
    phase: str

    @property
    def place(self) -> Place:
        """Position of its record."""
        return self.partition, self.offset


@dataclass
class Produced:
    """The contents of the topic.

    Attributes:
        sent: Position → number of each acknowledged event; an event that was published twice has two positions and one id.
        ids: Number → its event id.
        perhaps: Numbers of events that were not acknowledged, and may be in the topic.
        fates: Number → fate, of the events that have one.
    """

    sent: dict[Place, int] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    perhaps: set[int] = field(default_factory=set)
    fates: dict[int, str] = field(default_factory=dict)

    def as_in(self, subscriber: str) -> Produced:
        """Return a copy with the fates of the events in one subscriber."""
        return replace(self, fates={number: fate_in(subscriber, fate) for number, fate in self.fates.items()})


@dataclass
class Verdict:
    """The result of one subscriber.

    Attributes:
        calls: Number of calls of its function.
        done: Number of records for which it has returned.
        letters: Reason → number of dead letters.
        repeated: Number of calls of an event after the first one, without those that reported that nothing was done.
        interrupted: Number of records with a begin, no end, and a dead letter.
        deaths: Highest number of calls of an event that kills its process each time.
        wrong: Violations of the guarantee, a sentence each.
    """

    calls: int = 0
    done: int = 0
    letters: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    interrupted: int = 0
    deaths: int = 0
    wrong: list[str] = field(default_factory=list)


def verdict(
    promise: str,
    produced: Produced,
    rows: Sequence[Row],
    letters: Mapping[Place, Sequence[str]],
    committed: Mapping[int, int],
    ends: Mapping[int, int],
    *,
    kept_data: bool,
    is_ordered: bool = False,
    is_killed: bool = False,
) -> Verdict:
    """Judges one subscriber.

    Args:
        promise: Its delivery guarantee.
        produced: The contents of its topic.
        rows: Rows of its calls, in the order in which they were written.
        letters: Position of an event → reasons of its dead letters.
        committed: Partition → offset that its group has committed.
        ends: Partition → end of its log.
        kept_data: Whether Redis has lost nothing.
        is_ordered: Whether the events of a key are called one after the other.
        is_killed: Whether workers were killed or frozen from outside: any event that ran alone at that time may be considered
            the cause.
    """
    found = Verdict(calls=sum(row.phase == "begin" for row in rows))
    by_place: dict[Place, list[Row]] = defaultdict(list)
    for row in rows:
        by_place[row.place].append(row)
    ended = {place for place, some in by_place.items() if any(row.phase == "end" for row in some)}
    found.done = len(ended)
    for reasons in letters.values():
        for reason in reasons:
            found.letters[reason] = found.letters.get(reason, 0) + 1
    finished_ids = {produced.ids[produced.sent[place]] for place in (*ended, *letters) if place in produced.sent}
    lost = [
        place
        for place, number in produced.sent.items()
        if place not in ended and place not in letters and (promise == "yes" or produced.ids[number] not in finished_ids)
    ]
    found.wrong += _said(lost, "neither done nor a letter")
    if promise == "yes":
        rejected = [place for place, number in produced.sent.items() if reasons_of(promise, number, produced) == {"rejected"}]
        found.wrong += _said([place for place in rejected if place not in letters], "rejected, and no letter says so")
    strange = [
        (reason, place)
        for place, reasons in letters.items()
        if place in produced.sent
        for reason in {*reasons} - reasons_of(promise, produced.sent[place], produced) - ({"crashed"} if is_killed else set())
    ]
    found.wrong += _said(strange, "letters for a reason that their events have not given")
    begun_alone = [place for place, some in by_place.items() if some[-1].phase == "begin" and place not in ended]
    found.interrupted = len([place for place in begun_alone if place in letters])
    found.wrong += _said([place for place in begun_alone if place not in letters], "begun, and nothing came of it")
    killers = [number for number, fate in produced.fates.items() if fate in (KILLS, KILLS_LATE)]
    found.deaths = max((sum(row.number == number for row in rows) for number in killers), default=0)
    found.repeated = sum(count - 1 for count in _counted(rows, by_id=True).values() if count > 1)
    if promise == "no":
        found.wrong += _said(
            [place for place, count in _counted(rows, by_id=False).items() if count > 1], "called twice for a record"
        )
    if promise == "no" or (promise == "unknown" and kept_data):
        found.wrong += _said([name for name, count in _counted(rows, by_id=True).items() if count > 1], "called twice for an id")
    found.wrong += [
        f"partition {partition}: {committed.get(partition, 0)} of {end} is committed"
        for partition, end in ends.items()
        if committed.get(partition, 0) != end
    ]
    if is_ordered:
        found.wrong += _said(_overtaken(rows, produced, letters), "begun before the one before it was finished")
    return found


def reasons_of(promise: str, number: int, produced: Produced) -> set[str]:
    """Return the reasons for which an event may become a dead letter."""
    cut_off = set() if promise == "yes" else {"interrupted", "finished-late"}
    match produced.fates.get(number):
        case str(fate) if fate in (KILLS, KILLS_LATE):
            return cut_off or {"crashed"}
        case str(fate) if fate == HANGS or (fate == HANGS_AT_FIRST and promise != "yes"):
            return {"timed-out"} | cut_off
    if is_rejected(number):
        return {"rejected"} | cut_off
    return ({"failed"} if is_failing(number) and promise != "yes" else set()) | cut_off


def _counted(rows: Iterable[Row], *, by_id: bool) -> dict[object, int]:
    """Return record, or event id → number of calls that did not report that nothing was done."""
    counts: dict[object, int] = defaultdict(int)
    for row in rows:
        if row.phase in ("begin", "retry"):
            counts[row.event_id if by_id else row.place] += 1 if row.phase == "begin" else -1
    return counts


def _overtaken(rows: Sequence[Row], produced: Produced, letters: Collection[Place]) -> list[Place]:
    """Return the records whose first call began before the previous record of the same key was finished, in any process."""
    begun: dict[Place, int] = {}
    finished: dict[Place, int] = {}
    for position, row in enumerate(rows):
        if row.phase == "begin":
            begun.setdefault(row.place, position)
        elif row.phase in ("end", "reject"):
            finished.setdefault(row.place, position)
    lanes: dict[tuple[int, int], list[Place]] = defaultdict(list)
    for place, number in sorted(produced.sent.items()):
        lanes[place[0], number % KEYS].append(place)
    # The time of a dead letter without a call is unknown.
    return [
        late
        for places in lanes.values()
        for early, late in pairwise(places)
        if late in begun and finished.get(early, NEVER) > begun[late] and (early in finished or early not in letters)
    ]


def _said(places: Sequence[object], what: str) -> list[str]:
    return [f"{len(places)} {what}, for instance {sorted(map(str, places))[:3]}"] if places else []
