"""The judge of subscribers: by what was produced, calls, dead letters and commits alone; never by Redis, never by logs (pure)."""

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
"""So many customers order: which one says the number of the event."""

Place = tuple[int, int]
"""Partition and offset."""


class Row(NamedTuple):
    """What a function has written down."""

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
        """Of its record."""
        return self.partition, self.offset


@dataclass
class Produced:
    """What is in the topic.

    Attributes:
        sent: Place → number of each acknowledged event; an event that was published twice has two places and one id.
        ids: Number → its event id.
        perhaps: Numbers that were not acknowledged, and may be there.
        fates: Number → what else its function does, of the few where it does.
    """

    sent: dict[Place, int] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    perhaps: set[int] = field(default_factory=set)
    fates: dict[int, str] = field(default_factory=dict)

    def as_in(self, subscriber: str) -> Produced:
        """The same with the fates that its events have in one subscriber."""
        return replace(self, fates={number: fate_in(subscriber, fate) for number, fate in self.fates.items()})


@dataclass
class Verdict:
    """What came of one subscriber.

    Attributes:
        calls: How often its function was called.
        done: Records for which it has returned.
        letters: Reason → dead letters.
        repeated: Calls of an event beyond the first one, without those that said that nothing was done.
        interrupted: Records that were begun and have no end, but a letter.
        deaths: How often an event was called at most that kills its process each time.
        wrong: What breaks the promise, a sentence each.
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
        promise: What it declares.
        produced: What is in its topic.
        rows: Of its calls, in the order in which they were written.
        letters: Place of an event → reasons of its dead letters.
        committed: Partition → offset that its group has committed.
        ends: Partition → end of its log.
        kept_data: Whether Redis has lost nothing.
        is_ordered: Whether the events of a key are called one after the other.
        is_killed: Whether workers were killed or frozen from outside: any event that was being watched then may be taken for what
            has killed them.
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
    """The reasons for which an event may become a dead letter."""
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
    """Record, or event id → calls that did not say that nothing was done."""
    counts: dict[object, int] = defaultdict(int)
    for row in rows:
        if row.phase in ("begin", "retry"):
            counts[row.event_id if by_id else row.place] += 1 if row.phase == "begin" else -1
    return counts


def _overtaken(rows: Sequence[Row], produced: Produced, letters: Collection[Place]) -> list[Place]:
    """Records whose first call began before the record before it of the same key was finished, whichever process called."""
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
    # When a dead letter was sent that no call speaks of, nobody has written down.
    return [
        late
        for places in lanes.values()
        for early, late in pairwise(places)
        if late in begun and finished.get(early, NEVER) > begun[late] and (early in finished or early not in letters)
    ]


def _said(places: Sequence[object], what: str) -> list[str]:
    return [f"{len(places)} {what}, for instance {sorted(map(str, places))[:3]}"] if places else []
