"""What a bench of journals files: how much, and which events, with the goals of each kind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final, NamedTuple, Self

from benchmarks.loads import NAMES, SEED, metric_values

DAY_MS: Final = 86_400_000
DAYS: Final = 30
TOLERANCE: Final = 1.15
"""Goals of bytes and speed are those of the prototype, within 15 %."""

_TEXTS: Final = 499


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done; what stands in the goals is that of the defaults.

    Attributes:
        events: Filed, of each kind.
        large: Events of 900 kB that are filed.
        keys: Of the journal of 30 days.
        reads: Of single keys.
        backlog: Events of each topic that a worker reads.
        seconds: That a follower is watched.
    """

    events: int = 60_000
    large: int = 60
    keys: int = 1_000
    reads: int = 200
    backlog: int = 200_000
    seconds: int = 10

    @classmethod
    def scaled(cls, scale: float) -> Self:
        """A part of each."""
        return cls(*(max(1, round(one.default * scale)) for one in fields(cls) if isinstance(one.default, int)))


@dataclass(frozen=True, slots=True)
class Load:
    """One row of the table of goals.

    Attributes:
        a_key: Events of each key, in one day.
        size: Bytes of each.
        opened: Bytes of Redis an event while its segment is open, of the prototype.
        packed: The same once it is packed.
        append: Events/s of a core of Redis; 0: not a goal.
    """

    a_key: int
    size: int
    opened: int
    packed: int
    append: int = 0

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.a_key:,} a key of {self.size} B"


LOADS: Final = (
    Load(3, 167, 319, 57, 137_000),
    Load(20, 167, 313, 52, 88_000),
    Load(300, 167, 209, 44, 292_000),
    Load(20_000, 166, 47, 38, 4_600_000),
    Load(3, 605, 819, 156),
)


class Record(NamedTuple):
    """A record as a consumer hands it over."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


class Values:
    """Events as JSON: an account, a post, a time, changed metrics, and words until the size is reached."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._random = random.Random(SEED)
        self._metrics = metric_values(self._random)
        self._texts = [" ".join(self._random.choices(NAMES, k=size // 5)).encode() for _ in range(_TEXTS)]

    def of(self, account: int, time_ms: int) -> bytes:
        """The next event of an account."""
        chance = self._random
        head = b'{"account_id":"account_%d","post_id":"post_%d","at_ms":%d,"metrics":%b,"text":"' % (
            account, chance.randrange(100_003), time_ms, chance.choice(self._metrics),
        )  # fmt: skip
        left = self._size - len(head) - 2
        return head + chance.choice(self._texts)[: max(0, left)] + b'"}'


def mixed(events: int, a_key: int, size: int, begin_ms: int) -> Iterator[Record]:
    """So many events of a day, those of each key among those of the others."""
    keys, values, chance = max(1, events // a_key), Values(size), random.Random(SEED + 1)
    order = [number % keys for number in range(events)]
    chance.shuffle(order)
    for number, account in enumerate(order):
        at_ms = begin_ms + number * (DAY_MS // 2) // events
        yield Record(number, at_ms, b"account_%d" % account, values.of(account, at_ms))


def month(keys: int, begin_ms: int) -> Iterator[Record]:
    """Two events of each key on each of 30 days, at random: quiet keys, as most are."""
    values, chance, events = Values(167), random.Random(SEED + 2), keys * DAYS * 2
    for number in range(events):
        at_ms, account = begin_ms + number * DAY_MS * DAYS // events, chance.randrange(keys)
        yield Record(number, at_ms, b"account_%d" % account, values.of(account, at_ms))


def large(events: int, begin_ms: int) -> Iterator[Record]:
    """Events of 900 kB that nothing compresses, and their keys."""
    chance = random.Random(SEED + 3)
    for number in range(events):
        value = b'{"account_id":"account_%d","data":"%b"}' % (number % 3, chance.randbytes(450_000).hex().encode())
        yield Record(number, begin_ms, b"account_%d" % (number % 3), value)
