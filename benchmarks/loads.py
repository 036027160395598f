"""The loads: which events, in which order, for which groups, and how many records must come out (pure).

Every load is a function of its seed and its scale. Events are in the order of their time, which is an offset in ms into
:data:`SPAN_MS`; :func:`expected_records` is computed from them alone, never from the output of a worker.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

PARTITIONS: Final = 4
SPAN_MS: Final = 3_600_000
QUIET_MS: Final = 60_000
"""Quiet period of every load."""

SEED: Final = 20_210_801
PARETO: Final = 1.1
NAMES: Final = (
    "likes", "shares", "comments", "views", "clicks", "saves", "replies", "follows", "mentions", "reach", "quotes", "visits",
)  # fmt: skip
BURST_MS: Final = 5_000
STEADY_MS: Final = 30_000
BIG_METRICS: Final = 40
BIG_BYTES: Final = 4_000


class Event(NamedTuple):
    """One event: its time as an offset into the span, its partition, its record key and value."""

    at_ms: int
    partition: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of input.

    Attributes:
        name: Name on the command line.
        what: Description for the reader of a report.
        events: Number of events at scale 1.
        generate: Scale and partitions → events in the order of their time.
        ratio_of: Figure of its ratio: the ``fold`` rate, or events/s until the last ``record`` is out.
    """

    name: str
    what: str
    events: int
    generate: Callable[[float, int], Iterator[Event]]
    ratio_of: str


@dataclass(slots=True)
class Expected:
    """The expected number of records of a load: by gaps of record time (``sessions``), and merged (one for each group)."""

    events: int = 0
    sessions: int = 0
    merge: int = 0

    def records(self, backlog: str) -> int:
        """Return the number of records of a fold with this ``backlog``."""
        return self.sessions if backlog == "sessions" else self.merge


def counting(events: Iterator[Event], expected: Expected) -> Iterator[Event]:
    """Yield the events and count their expected records, group by group within a partition."""
    last: dict[tuple[int, bytes], int] = {}
    for event in events:
        expected.events += 1
        group = event.partition, event.key
        before = last.get(group)
        # A gap of exactly X still belongs to the session.
        if before is None or event.at_ms - before > QUIET_MS:
            expected.sessions += 1
        last[group] = event.at_ms
        yield event
    expected.merge = len(last)


def partition_of(key: bytes, partitions: int = PARTITIONS) -> int:
    """Return a partition; any stable choice is valid if a group stays in one partition."""
    return zlib.crc32(key) % partitions


def _pareto_group(random: Random, groups: int) -> int:
    """1 … groups; the first has 53 % of the events."""
    return min(int(random.paretovariate(PARETO)), groups)


def metric_values(random: Random, names: int | None = None) -> list[bytes]:
    """Return some hundred JSON objects of changed metrics to choose from: encoding each event would cost more than sending it."""
    found = []
    for _ in range(499):
        chosen = random.sample(NAMES, names or random.choice((2, 3)))
        found.append(("{" + ",".join(f'"{name}":{random.randrange(10_000)}' for name in chosen) + "}").encode())
    return found


def small_value(key: bytes, post: int, metrics: bytes) -> bytes:
    """An event of about 100 bytes."""
    return b'{"account_id":"%b","post_id":"post_%d","metrics":%b}' % (key, post, metrics)


def _small(times: Iterator[tuple[int, int]], random: Random, partitions: int) -> Iterator[Event]:
    metrics = metric_values(random)
    for number, (at_ms, group) in enumerate(times):
        key = b"account_%d" % group
        yield Event(at_ms, partition_of(key, partitions), key, small_value(key, number % 100_003, metrics[number % len(metrics)]))


def _hot(scale: float, partitions: int) -> Iterator[Event]:
    random = Random(SEED)
    total, groups = round(1_000_000 * scale), max(1, round(10_000 * scale))
    return _small(((number * SPAN_MS // total, _pareto_group(random, groups)) for number in range(total)), random, partitions)


def _bursts(scale: float, partitions: int) -> Iterator[Event]:
    random = Random(SEED + 1)
    total, groups = round(1_000_000 * scale), max(1, round(100_000 * scale))
    times: list[tuple[int, int]] = []
    while len(times) < total:
        group, start = random.randrange(groups), random.randrange(SPAN_MS - BURST_MS)
        # Two to six, four on average: including overlaps, a million events make 240 000 sessions.
        times += [(start + random.randrange(BURST_MS), group) for _ in range(random.randint(2, 6))]
    del times[total:]
    times.sort()
    return _small(iter(times), random, partitions)


def _wide(scale: float, partitions: int) -> Iterator[Event]:
    total = round(300_000 * scale)
    return _small(((number * SPAN_MS // total, number) for number in range(total)), Random(SEED + 2), partitions)


def _steady(scale: float, partitions: int) -> Iterator[Event]:
    random = Random(SEED + 6)
    total, order = round(500_000 * scale), list(range(max(1, round(6_000 * scale))))

    def times() -> Iterator[tuple[int, int]]:
        for number in range(total):
            if number % len(order) == 0:
                random.shuffle(order)
            yield number // len(order) * STEADY_MS, order[number % len(order)]

    return _small(times(), random, partitions)


def _random(scale: float, partitions: int) -> Iterator[Event]:
    random = Random(SEED + 7)
    total, groups = round(500_000 * scale), max(1, round(8_000 * scale))
    return _small(((number * SPAN_MS // total, random.randrange(groups)) for number in range(total)), random, partitions)


def _big(scale: float, partitions: int) -> Iterator[Event]:
    random = Random(SEED + 3)
    total, groups = round(100_000 * scale), max(1, round(1_000 * scale))
    tails = [_big_tail(random) for _ in range(64)]
    for number in range(total):
        key = b"account_%d" % _pareto_group(random, groups)
        head = b'{"account_id":"%b","post_id":"post_%d",' % (key, number)
        yield Event(number * SPAN_MS // total, partition_of(key, partitions), key, head + tails[number % len(tails)])


def _big_tail(random: Random) -> bytes:
    """Return forty metrics, a history of numbers and a text: fields of an event that no fold reads."""
    metrics = ",".join(f'"metric_{number:02}":{random.randrange(10**6)}' for number in range(BIG_METRICS))
    history = ",".join(f'{{"day":{day},"views":{random.randrange(10**5)}}}' for day in range(40))
    head = f'"metrics":{{{metrics}}},"history":[{history}],"text":"'
    words = [random.choice(NAMES) for _ in range(BIG_BYTES // 4)]
    return (head + " ".join(words)[: BIG_BYTES - len(head) - 60] + '"}').encode()


def single_events(groups: range, *, at_once: bool = False) -> Iterator[Event]:
    """Yield one event with three names for each of these groups: over the span, or all at its begin.

    Args:
        groups: Numbers of the groups.
        at_once: Whether every event has the same time.
    """
    step = 0 if at_once else SPAN_MS
    return _same_names((number * step // len(groups), group) for number, group in enumerate(groups))


def spread_events(total: int, groups: int) -> Iterator[Event]:
    """So many events at the end of the span, each of the next of these groups, round after round, with the names it has.

    The order is not random: a group that occurs twice within a batch is written once, which would make few groups look cheap.
    """
    order = list(range(groups))
    Random(SEED + 5).shuffle(order)
    return _same_names((SPAN_MS, order[number % groups]) for number in range(total))


def _same_names(times: Iterator[tuple[int, int]]) -> Iterator[Event]:
    """Return three names that are the same in every event of a group, so that the group does not grow."""
    metrics = metric_values(Random(SEED + 4), 3)
    for at_ms, group in times:
        key = b"account_%d" % group
        yield Event(at_ms, partition_of(key), key, small_value(key, group % 100_003, metrics[group % len(metrics)]))


LOADS: Final = {
    load.name: load
    for load in (
        Load("hot", "Pareto over 10 000 groups", 1_000_000, _hot, "fold"),
        Load("bursts", "100 000 groups, bursts of about five within seconds", 1_000_000, _bursts, "record"),
        Load("wide", "every event its own group", 300_000, _wide, "record"),
        Load("steady", "6 000 groups with an event every 30 s each, which never end", 500_000, _steady, "fold"),
        Load("random", "8 000 groups at random: every third gap ends a session", 500_000, _random, "record"),
        Load("big", "events of 4 kB with 40 metrics", 100_000, _big, "fold"),
    )
}
