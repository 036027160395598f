"""Estimates the memory of open groups in Redis (pure), from the layout of the state, see ``docs/explained/internals.md``.

A packed group is a member of one sorted set, and a field of a hash, and its timer is in a batch. Any other group is a member of two
sorted sets, and has a hash of its own. Measured with 20 000 groups of 0 to 200 names and members of 10 to 100 bytes, on Redis 7.0
and Valkey 9.1: the estimate lies between the two, within a quarter of either. It does not include the values that ``keep = "last"``
adds.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams_app.folding.store.codec import PACKED_BYTES
from streams_app.tuning.columns import NUMBERED, Columns, Times
from streams_app.tuning.splitting import Positions

PACKED_GROUP_BYTES: Final = 155
"""Memory of a packed group without its key and changed names, in bytes: 190 with Redis 7, 125 with Valkey 9."""

PACKED_NAME_BYTES: Final = 2
"""Overhead of each name in a packed group, in bytes."""

GROUP_BYTES: Final = 300
"""Memory of a group that is a hash, without its key and changed names, in bytes: 360 with Redis 7, 240 with Valkey 9."""

NAME_BYTES: Final = 4
"""Overhead of each name in a small hash, in bytes."""

LARGE_NAME_BYTES: Final = 45
"""Overhead of each name in a hash that is large or has a long name, in bytes: 60 with Redis 7, 30 with Valkey 9."""

EVENT_BYTES: Final = 10
"""Overhead of each kept event, in bytes: its offset and length, and its share of the field of its run."""

ID_BYTES: Final = 28
LARGE_ID_BYTES: Final = 80
"""Memory of the id of an event (``dedupe_by``) in a small and in a large hash, in bytes."""

ID_KEY_BYTES: Final = 100
"""Memory of the key with the ids of a group, without its name, in bytes."""

SMALL_NAMES: Final = 512
SMALL_NAME_BYTES: Final = 64
"""Number of names, and length of the longest one, up to which Redis packs a hash by default (``hash-max-listpack-*``)."""

_ENOUGH: Final = 30


def group_bytes(
    names: NDArray[np.int64], name_bytes: float, key_bytes: float, prefix_bytes: int, *, packs: bool
) -> NDArray[np.float64]:
    """Return the estimated memory of each group in Redis, in bytes, from its number of names and (mean) lengths in bytes.

    Args:
        packs: Whether small groups are packed.
    """
    is_small = (names <= SMALL_NAMES) & (name_bytes <= SMALL_NAME_BYTES)
    each = name_bytes + np.where(is_small, NAME_BYTES, LARGE_NAME_BYTES)
    packed = names * (name_bytes + PACKED_NAME_BYTES)
    as_hash = GROUP_BYTES + prefix_bytes + names * each
    return np.where(packs & (packed <= PACKED_BYTES), PACKED_GROUP_BYTES + 2 * key_bytes + packed, as_hash + 3 * key_bytes)


class RecordSample:
    """The folded records of a random sample of groups, for an estimate of the mean memory of an open group."""

    def __init__(self, columns: Columns, starts: Positions, closes: Times, early: NDArray[np.bool_] | None = None) -> None:
        """Select the records of the groups with the lowest hashes, from sorted columns.

        Args:
            columns: Sorted columns.
            starts: Positions at which the records begin.
            closes: Time at which the group of each record closes, in ms after the earliest event of the range.
            early: Which records are early, so that their group stays open and empty after them; None if no record is early.
        """
        # The groups with the lowest hashes are a random sample.
        events = min(NUMBERED, len(columns.after_ms))
        count = int(np.searchsorted(starts, np.int32(events)))
        self._columns = columns
        self._records = np.repeat(np.arange(count), np.diff(starts[:count], append=events))
        self._after_ms = columns.after_ms[:events].astype(np.int64)
        self._opens, self._closes = self._after_ms[starts[:count]], closes[:count].astype(np.int64)
        self._is_early = np.zeros(count, bool) if early is None else early[:count]

    def mean_bytes(self, instant_ms: int, prefix_bytes: int, *, packs: bool) -> float:
        """Return the mean Redis memory, in bytes, of the groups that are open at an instant, in ms after the earliest event.

        If only few groups of the sample are open at the instant, return the mean for all records of the sample.

        Args:
            packs: Whether small groups are packed.
        """
        is_open = (self._opens <= instant_ms) & (instant_ms <= self._closes)
        if np.count_nonzero(is_open) < _ENOUGH:
            is_open[:] = self._is_early.all() | ~self._is_early
            instant_ms = int(self._after_ms.max())
        is_there = (is_open & ~self._is_early)[self._records] & (self._after_ms <= instant_ms)
        names = self._names_of(self._records[is_there], self._columns.numbers[: len(self._records)][is_there])[is_open]
        sets = self._columns.sets
        mean = float(group_bytes(names, sets.name_bytes, self._columns.key_bytes, prefix_bytes, packs=packs).mean())
        if (kept := self._columns.kept_bytes) is not None:
            mean += float((kept[: len(self._records)][is_there] + EVENT_BYTES).sum()) / max(1, int(np.count_nonzero(is_open)))
        if self._columns.has_ids:
            events = np.bincount(self._records[is_there], minlength=len(is_open))[is_open]
            mean += float(np.where(events <= SMALL_NAMES, ID_BYTES, LARGE_ID_BYTES) @ events) / max(1, len(events))
            mean += ID_KEY_BYTES + prefix_bytes + self._columns.key_bytes
        return mean

    def _names_of(self, records: NDArray[np.int64], numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
        sets = self._columns.sets
        by_record: dict[int, set[int]] = {}
        for record, number in set(zip(records.tolist(), numbers.tolist(), strict=True)):
            by_record.setdefault(record, set()).update(sets.names_of(number))
        found = np.zeros(len(self._opens), np.int64)
        for record, names in by_record.items():
            found[record] = len(names)
        return found


_SPANS: Final = 1 << 20
_BLOCK: Final = 1 << 19
_SAMPLE_TIMES: Final = 1 << 20
"""Maximum number of beginnings and ends that are sorted at once."""


def max_open(opens: Times, closes: Times) -> tuple[int, int]:
    """Return the largest number of intervals that overlap in one instant; intervals include both ends.

    The time is divided into a million spans of equal length. The number of intervals open at the beginning of a span is exact;
    together with those that open within it, it is an upper limit for the span. Only spans whose limit exceeds the best known result
    are examined, in descending order of their limits. Usually they are few, and this takes far less time and memory than sorting
    millions of times.

    Args:
        opens: Beginnings of the intervals, in any order; not empty, never negative; as many as there are ends.

    Returns:
        The number of intervals, and an instant at which they overlap.
    """
    shift = max(0, int(opens.max()).bit_length() - _SPANS.bit_length() + 1)
    return _max_from(opens, closes, 0, shift, 0)


def _max_from(opens: Times, closes: Times, low: int, shift: int, before: int) -> tuple[int, int]:
    """Compute :func:`max_open` from ``low`` on, with spans of ``2 ** shift``; ``before`` intervals are open at the beginning."""
    opening, closing = _counted(opens, low, shift), _counted(closes, low, shift)
    begun = before + np.cumsum(opening - closing) - opening + closing
    exact = begun if shift else begun + opening
    span = int(exact.argmax())
    most, instant = int(exact[span]), low + (span << shift)
    limits = begun + opening
    while shift and len(wanted := np.flatnonzero(limits > most)):
        wanted = wanted[np.argsort(-limits[wanted], kind="stable")]
        times = np.cumsum(opening[wanted] + closing[wanted])
        some = np.sort(wanted[: max(1, int(np.searchsorted(times, _SAMPLE_TIMES)))])
        limits[some] = 0
        if times[0] > _SAMPLE_TIMES:
            inner = max(0, shift - _SPANS.bit_length() + 1)
            found = _max_from(opens, closes, low + (int(some[0]) << shift), inner, int(begun[some[0]]))
        else:
            found = _max_in(_within(opens, some, low, shift), _within(closes, some, low, shift), some, low, shift, begun[some])
        most, instant = max((most, instant), found, key=lambda each: each[0])
    return most, instant


def _max_in(
    opens: NDArray[np.int64],
    closes: NDArray[np.int64],
    spans: NDArray[np.int64],
    low: int,
    shift: int,
    begun: NDArray[np.int64],
) -> tuple[int, int]:
    """Compute :func:`max_open` within some spans, by sorting the beginnings and ends in them.

    Args:
        opens: Beginnings in these spans; sorted in place.
        closes: Ends in these spans; sorted in place.
        spans: Numbers of the spans, rising; each contains a beginning.
        low: Beginning of the first of all spans.
        shift: Binary logarithm of the length of a span.
        begun: Number of intervals open at the beginning of each of these spans.
    """
    opens.sort()
    closes.sort()
    # Number of intervals that opened and closed in the examined spans before the span of each opening.
    boundaries = low + (spans << shift)
    opened_before, closed_before = np.searchsorted(opens, boundaries), np.searchsorted(closes, boundaries)
    of = np.searchsorted(spans, (opens - low) >> shift)
    opened = np.searchsorted(opens, opens, "right") - opened_before[of]
    closed = np.searchsorted(closes, opens, "left") - closed_before[of]
    here = begun[of] + opened - closed
    at = int(here.argmax())
    return int(here[at]), int(opens[at])


def _spans_of(times: Times, low: int, shift: int) -> NDArray[np.int64]:
    """Return the number of the span of each time; ``_SPANS`` for times outside all spans."""
    spans = (times.astype(np.int64) - low) >> shift
    spans[(spans < 0) | (spans > _SPANS)] = _SPANS
    return spans


def _counted(times: Times, low: int, shift: int) -> NDArray[np.int64]:
    found = np.zeros(_SPANS + 1, np.int64)
    for begin in range(0, len(times), _BLOCK):
        found += np.bincount(_spans_of(times[begin : begin + _BLOCK], low, shift), minlength=_SPANS + 1)
    return found[:_SPANS]


def _within(times: Times, some: NDArray[np.int64], low: int, shift: int) -> NDArray[np.int64]:
    found, is_wanted = [], np.zeros(_SPANS + 1, bool)
    is_wanted[some] = True
    for begin in range(0, len(times), _BLOCK):
        block = times[begin : begin + _BLOCK]
        found.append(block[is_wanted[_spans_of(block, low, shift)]].astype(np.int64))
    return np.concatenate(found)
