"""Seven shapes of streams, each plain and in six variants, as arrays of times and groups (pure).

A stream consists of bursts of one group each. A shape determines how often bursts begin, to which groups they belong, how many
events they have and how far apart these are. A variant changes one of these over time. Equal seeds give equal streams.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

DAYS: Final = 3
DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
SPAN_MS: Final = DAYS * DAY_MS
BEGIN_MS: Final = 1_700_006_400_000
"""Time of the first event, at the beginning of a UTC day."""

JUMP_MS: Final = 25 * 60_000
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Stream(NamedTuple):
    """Events in the order of their offsets.

    Attributes:
        stamps_ms: Timestamps of the events, in ms since 1970.
        groups: Number of each event's group.
    """

    stamps_ms: Ints
    groups: Ints


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of stream.

    Attributes:
        bursts: Number of bursts in the whole span.
        groups: Random generator and number of bursts → the group of each burst.
        sizes: Random generator and number of bursts → number of events of each burst.
        gaps_ms: Random generator and number of events → time after each event until the next one of its burst.
    """

    what: str
    bursts: int
    groups: Callable[[np.random.Generator, int], Ints]
    sizes: Callable[[np.random.Generator, int], Ints]
    gaps_ms: Callable[[np.random.Generator, int], Floats]


def _ones(_: np.random.Generator, count: int) -> Ints:
    return np.ones(count, np.int64)


def _nothing(_: np.random.Generator, count: int) -> Floats:
    return np.zeros(count)


def _pareto(random: np.random.Generator, count: int) -> Ints:
    return np.minimum(random.pareto(1.1, count) * 20, 2_999).astype(np.int64)


def _crawled(random: np.random.Generator, count: int) -> Ints:
    found: Ints = np.exp(random.random(count) * np.log(2_000)).astype(np.int64)
    return found


def _typed_ms(random: np.random.Generator, count: int) -> Floats:
    is_pause = random.random(count) < 0.08  # one pause in a dozen keystrokes
    return np.where(is_pause, random.lognormal(np.log(240_000), 0.5, count), random.lognormal(np.log(3_000), 0.7, count))


SHAPES: Final = {
    "hot": Shape("Pareto over 3 000 groups, at random", 150_000, _pareto, _ones, _nothing),
    "bursts": Shape(
        "4 000 groups, bursts of some 8 events with 20 s between them", 18_000,
        lambda random, count: random.integers(4_000, size=count),
        lambda random, count: random.geometric(1 / 8, count), lambda random, count: random.exponential(20_000, count),
    ),
    "wide": Shape("each event its own group", 100_000, lambda _, count: np.arange(count), _ones, _nothing),
    "steady": Shape(
        "300 groups, an event every 45 s for some 2 hours", 900, lambda random, count: random.integers(300, size=count),
        lambda random, count: 120 + random.integers(80, size=count),
        lambda random, count: random.normal(45_000, 4_000, count).clip(1),
    ),
    "random": Shape("400 groups, at random", 150_000, lambda random, count: random.integers(400, size=count), _ones, _nothing),
    "crawler": Shape(
        "2 000 groups, some of them hot, crawled within 2 s", 7_000, _crawled,
        lambda random, count: 1 + random.exponential(20, count).astype(np.int64),
        lambda random, count: random.uniform(0, 150, count),
    ),
    "typing": Shape(
        "800 users who type, with pauses of some 4 minutes, and return hours later", 3_000,
        lambda random, count: random.integers(800, size=count), lambda random, count: random.geometric(1 / 50, count), _typed_ms,
    ),
}  # fmt: skip

VARIANTS: Final = {
    "plain": "the same all the time",
    "drift": "gaps grow fourfold over the three days",
    "day-night": "at night a tenth of the bursts, with gaps of twice the length",
    "rush": "in one hour of each day, ten times the bursts",
    "heavy group": "from the middle of the second day, one more group has as many events as all others",
    "silence": "no events for ten hours of the second day",
    "clock jump": "the clock is 25 minutes ahead for half an hour of the second day, and then goes back",
}


def stream(shape: str, variant: str, seed: int) -> Stream:
    """Return the events of a shape with a variant over three days."""
    rule, random = SHAPES[shape], np.random.default_rng([seed, zlib.crc32(f"{shape}/{variant}".encode())])
    begins = np.sort(_begins(random, rule.bursts, variant))
    sizes = rule.sizes(random, len(begins))
    groups = np.repeat(rule.groups(random, len(begins)), sizes)
    gaps_ms = rule.gaps_ms(random, len(groups)) * np.repeat(_stretch(begins, variant), sizes)
    after_ms = np.cumsum(gaps_ms) - gaps_ms
    firsts = np.cumsum(sizes) - sizes
    times = np.repeat(begins - after_ms[firsts], sizes) + after_ms
    if variant == "heavy group":
        added = np.sort(random.uniform(1.5 * DAY_MS, SPAN_MS, len(groups) // 2))
        times, groups = np.append(times, added), np.append(groups, np.full(len(added), -1))
    if variant == "silence":
        is_event = (times < 1.3 * DAY_MS) | (times > 1.3 * DAY_MS + 10 * HOUR_MS)
        times, groups = times[is_event], groups[is_event]
    order = np.argsort(times, kind="stable")
    times, groups = times[order], groups[order]
    is_within = times < SPAN_MS
    stamps = BEGIN_MS + times[is_within].astype(np.int64)
    if variant == "clock jump":
        jump = BEGIN_MS + round(1.4 * DAY_MS)
        stamps[(stamps >= jump) & (stamps < jump + HOUR_MS // 2)] += JUMP_MS
    return Stream(stamps, groups[is_within])


def _begins(random: np.random.Generator, count: int, variant: str) -> Floats:
    begins = random.random(count) * SPAN_MS
    if variant == "day-night":
        begins = begins[random.random(count) < 0.1 + 0.9 * _daylight(begins)]
    if variant == "rush":
        more = random.random(count * 9 // 24) * DAYS * HOUR_MS
        begins = np.append(begins, more // HOUR_MS * DAY_MS + 0.6 * DAY_MS + more % HOUR_MS)
    return begins


def _stretch(begins: Floats, variant: str) -> Floats:
    if variant == "drift":
        return 4 ** (begins / SPAN_MS)
    return 2 - _daylight(begins) if variant == "day-night" else np.ones(len(begins))


def _daylight(times: Floats) -> Floats:
    """Return 0 at midnight, and 1 at noon."""
    return (1 - np.cos(2 * np.pi * times / DAY_MS)) / 2
