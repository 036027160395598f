"""The judge of subscribers: uses only the produced events, calls, dead letters and commits; never Redis, never logs (pure)."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple

from tests.chaos.subscribers.catalogue import HANGS, HANGS_AT_FIRST, KILLS, KILLS_LATE, fate_in, is_failing, is_rejected

NEVER: Final = sys.maxsize
KEYS: Final = 50
"""Number of customers; the number of an event determines its customer."""

Position = tuple[int, int]
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
    def position(self) -> Position:
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

    sent: dict[Position, int] = field(default_factory=dict)
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
        dead_letters: Reason → number of dead letters.
        repeated: Number of calls of an event after the first one, except calls that reported that nothing was done.
        interrupted: Number of records with a begin, no end, and a dead letter.
        deaths: Highest number of calls of an event that kills its process each time.
        wrong: Violations of the guarantee, a sentence each.
    """

    calls: int = 0
    done: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    interrupted: int = 0
    deaths: int = 0
    wrong: list[str] = field(default_factory=list)


def verdict(
    guarantee: str,
    produced: Produced,
    rows: Sequence[Row],
    dead_letters: Mapping[Position, Sequence[str]],
    committed: Mapping[int, int],
    ends: Mapping[int, int],
    *,
    kept_data: bool,
    is_ordered: bool = False,
    is_killed: bool = False,
) -> Verdict:
    """Judge one subscriber.

    Args:
        guarantee: Its delivery guarantee.
        produced: The contents of its topic.
        rows: Rows of its calls, in the order in which they were written.
        dead_letters: Position of an event → reasons of its dead letters.
        committed: Partition → offset that its group has committed.
        ends: Partition → end of its log.
        kept_data: Whether Redis has lost nothing.
        is_ordered: Whether the events of a key are called one after the other.
        is_killed: Whether workers were killed or frozen from outside: any event that ran alone at that time may be considered
            the cause.
    """
    found = Verdict(calls=sum(row.phase == "begin" for row in rows))
    by_position: dict[Position, list[Row]] = defaultdict(list)
    for row in rows:
        by_position[row.position].append(row)
    ended = {position for position, some in by_position.items() if any(row.phase == "end" for row in some)}
    found.done = len(ended)
    for reasons in dead_letters.values():
        for reason in reasons:
            found.dead_letters[reason] = found.dead_letters.get(reason, 0) + 1
    finished_ids = {produced.ids[produced.sent[position]] for position in (*ended, *dead_letters) if position in produced.sent}
    lost = [
        position
        for position, number in produced.sent.items()
        if position not in ended
        and position not in dead_letters
        and (guarantee == "yes" or produced.ids[number] not in finished_ids)
    ]
    found.wrong += _violation(lost, "neither done nor a dead letter")
    if guarantee == "yes":
        rejected = [
            position for position, number in produced.sent.items() if reasons_of(guarantee, number, produced) == {"rejected"}
        ]
        found.wrong += _violation(
            [position for position in rejected if position not in dead_letters], "rejected without a dead letter"
        )
    unexpected = [
        (reason, position)
        for position, reasons in dead_letters.items()
        if position in produced.sent
        for reason in {*reasons} - reasons_of(guarantee, produced.sent[position], produced) - ({"crashed"} if is_killed else set())
    ]
    found.wrong += _violation(unexpected, "dead letters for a reason that their events do not have")
    begun_alone = [position for position, some in by_position.items() if some[-1].phase == "begin" and position not in ended]
    found.interrupted = len([position for position in begun_alone if position in dead_letters])
    found.wrong += _violation(
        [position for position in begun_alone if position not in dead_letters], "begun without an end or a dead letter"
    )
    killing = [number for number, fate in produced.fates.items() if fate in (KILLS, KILLS_LATE)]
    found.deaths = max((sum(row.number == number for row in rows) for number in killing), default=0)
    found.repeated = sum(count - 1 for count in _counted(rows, by_id=True).values() if count > 1)
    if guarantee == "no":
        found.wrong += _violation(
            [position for position, count in _counted(rows, by_id=False).items() if count > 1], "called twice for a record"
        )
    if guarantee == "no" or (guarantee == "unknown" and kept_data):
        found.wrong += _violation(
            [name for name, count in _counted(rows, by_id=True).items() if count > 1], "called twice for an id"
        )
    found.wrong += [
        f"partition {partition}: {committed.get(partition, 0)} of {end} is committed"
        for partition, end in ends.items()
        if committed.get(partition, 0) != end
    ]
    if is_ordered:
        found.wrong += _violation(
            _overtaken(rows, produced, dead_letters), "begun before the previous event of the key was finished"
        )
    return found


def reasons_of(guarantee: str, number: int, produced: Produced) -> set[str]:
    """Return the reasons for which an event may become a dead letter."""
    cut_off = set() if guarantee == "yes" else {"interrupted", "finished-late"}
    match produced.fates.get(number):
        case str(fate) if fate in (KILLS, KILLS_LATE):
            return cut_off or {"crashed"}
        case str(fate) if fate == HANGS or (fate == HANGS_AT_FIRST and guarantee != "yes"):
            return {"timed-out"} | cut_off
    if is_rejected(number):
        return {"rejected"} | cut_off
    return ({"failed"} if is_failing(number) and guarantee != "yes" else set()) | cut_off


def _counted(rows: Iterable[Row], *, by_id: bool) -> dict[object, int]:
    """Return record, or event id → number of calls that did not report that nothing was done."""
    counts: dict[object, int] = defaultdict(int)
    for row in rows:
        if row.phase in ("begin", "retry"):
            counts[row.event_id if by_id else row.position] += 1 if row.phase == "begin" else -1
    return counts


def _overtaken(rows: Sequence[Row], produced: Produced, dead_letters: Collection[Position]) -> list[Position]:
    """Return the records whose first call began before the previous record of the same key was finished, in any process."""
    begun: dict[Position, int] = {}
    finished: dict[Position, int] = {}
    for index, row in enumerate(rows):
        if row.phase == "begin":
            begun.setdefault(row.position, index)
        elif row.phase in ("end", "reject"):
            finished.setdefault(row.position, index)
    lanes: dict[tuple[int, int], list[Position]] = defaultdict(list)
    for position, number in sorted(produced.sent.items()):
        lanes[position[0], number % KEYS].append(position)
    # The time of a dead letter without a call is unknown.
    return [
        late
        for positions in lanes.values()
        for early, late in pairwise(positions)
        if late in begun and finished.get(early, NEVER) > begun[late] and (early in finished or early not in dead_letters)
    ]


def _violation(positions: Sequence[object], what: str) -> list[str]:
    return [f"{len(positions)} {what}, for instance {sorted(map(str, positions))[:3]}"] if positions else []
