"""The sessions that must come out, computed from the events alone, and how those of a processor differ from them (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import orjson

from benchmarks.loads import PARTITIONS, QUIET_MS, SPAN_MS, Event, small_value

CLOSING: Final = "closing_"
"""Begin of the keys of :func:`closing`."""

CLOSING_MS: Final = SPAN_MS + 10 * QUIET_MS


class Session(NamedTuple):
    """One session: its account, the times of its first and its last event, their number, and the names that they changed."""

    account: str
    first_ms: int
    last_ms: int
    events: int
    names: frozenset[str]


class Difference(NamedTuple):
    """How found sessions differ from the truth.

    Attributes:
        missing: Number of sessions that did not come out as they are: later, with other events, or not at all.
        extra: Number of sessions that came out and are not in the truth, or came out twice.
    """

    missing: int
    extra: int


def closing() -> Iterator[Event]:
    """Yield an event for each partition, long after the load.

    Event time stands still without events: without these, Flink and Kafka Streams would never close the last sessions.
    """
    for partition in range(PARTITIONS):
        key = b"%b%d" % (CLOSING.encode(), partition)
        yield Event(CLOSING_MS, partition, key, small_value(key, partition, b'{"views":1}'))


class Truth:
    """Sessions of the events that have passed, with the times of a load: offsets into its span."""

    def __init__(self) -> None:
        """Without any session."""
        self.events = 0
        self._open: dict[str, tuple[int, int, int, frozenset[str]]] = {}
        self._closed: list[Session] = []

    def recording(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events, which are in the order of their time, and record their sessions."""
        for event in events:
            value = orjson.loads(event.value)
            account, names = value["account_id"], frozenset(value["metrics"])
            first, last, count, before = self._open.get(account, (event.at_ms, event.at_ms, 0, frozenset()))
            # A gap of exactly X still belongs to the session.
            if event.at_ms - last > QUIET_MS:
                self._closed.append(Session(account, first, last, count, before))
                first, count, before = event.at_ms, 0, frozenset()
            self._open[account] = first, event.at_ms, count + 1, before if names <= before else before | names
            self.events += 1
            yield event

    def sessions(self) -> list[Session]:
        """Return the sessions so far."""
        return self._closed + [Session(account, *fields) for account, fields in self._open.items()]


def folded(value: bytes, begin_ms: int) -> Session:
    """Return the session of a record.

    Args:
        value: The record's value.
        begin_ms: Wall clock time of the begin of the load.
    """
    record = orjson.loads(value)
    about = record["fold"]
    first_ms, last_ms = about["first_event_ms"] - begin_ms, about["last_event_ms"] - begin_ms
    return Session(record["account_id"], first_ms, last_ms, about["events"], frozenset(record["metrics"]))


def difference(truth: Iterable[Session], found: Iterable[Session]) -> Difference:
    """Compare sessions with the truth, without those of :func:`closing`, which some processors never close."""
    wanted, present = (Counter(each for each in some if not each.account.startswith(CLOSING)) for some in (truth, found))
    return Difference((wanted - present).total(), (present - wanted).total())
