"""Stores in numpy arrays the events from which ``tune`` computes its recommendation (pure).

An event takes 16 bytes, and 4 more if the events span over 49 days. It takes 4 to 12 more if the fold keeps events, or if its
events may close groups or set quiet periods, and 8 more if it has an id (``dedupe_by``).

A group is identified by a 64-bit hash of its partition and of its group key as Redis stores it, the *member*. The hash is that of
Python, whose seed differs in each process. The chance that any two of ten million groups have the same hash is 1 in 370 000.

The columns have a fixed size from the beginning. The system allocates their memory page by page when it is written, so they grow
without a copy. If the events do not fit, the columns keep a sample of the groups. Each time they are full, they drop the groups
with a 1 in the next leading bit of their hash, which is about half of the groups. So a topic of any length takes the same memory.
If a few groups have nearly all events, a sample would have too few groups for an estimate. Then the columns keep the beginning of
the range, and only count the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import compress, islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streams_app.fold import Fold
from streams_app.folding.core.event import FoldInput
from streams_app.folding.core.kept_events import size_of_event
from streams_app.quiet_period import QuietPeriod
from streams_app.tuning.auto_replay import AutoReplay
from streams_app.tuning.name_sets import NameSets

Times = NDArray[np.signedinteger[Any] | np.unsignedinteger[Any]]

CAPACITY: Final = 10_500_000
"""Maximum number of events; with all computed arrays, the process takes 300 to 450 MB, see ``docs/explained/measurements.md``."""

MAX_SHORT_MS: Final = 2**32 - 1
"""Longest range whose times fit into four bytes each: 49 days."""

NUMBERED: Final = 20_000
"""If no group can exceed the bound on names, only this many events keep their name sets: those with the lowest group hashes."""

FEWEST_GROUPS: Final = 50
"""Minimum number of groups in a sample; with fewer, single groups would dominate the estimate."""

LATE_STEPS_MS: Final = np.array([1, 10, 100, 1_000])
"""Thresholds of the counters of late events, in ms: an event counts if it is late by at least the threshold."""

_BATCH: Final = 16_384
_BLOCK: Final = 1 << 20
_BITS: Final = 64
_DAY_MS: Final = 86_400_000
_LONG_BYTES: Final = 8
_SPREAD: Final = 0x9E3779B97F4A7C15
"""Odd constant that gives each partition different hashes for the same members."""


class Columns:
    """The events of one time range in numpy arrays, one array (column) for each property.

    Attributes:
        from_ms: Lowest score, see :meth:`add`; 0 if there are no events.
        to_ms: Highest score; 0 if there are no events.
        is_cut: Whether only the beginning of the range is kept, because a few groups have nearly all events.
        late: For each of :data:`LATE_STEPS_MS`, the number of events that are at least that many ms older than an earlier event of
            their partition.
        own_periods: Number of events that set their own quiet period; None if no event of the fold can set one.
        auto: The quiet period if it sets itself; otherwise None.
        has_ids: Whether events have ids. When the columns are sorted, duplicates are left out.
    """

    def __init__(
        self, *, now_ms: int, max_changed: int = 10_000, capacity: int = CAPACITY, reads_details: bool = False,
        keeps_events: bool = False, longest_own_ms: int | None = None, dedupe_ms: int | None = None, auto: AutoReplay | None = None,
    ) -> None:  # fmt: skip
        """Create empty columns.

        Args:
            now_ms: Wall clock in ms. Events with a later time count at this time.
            longest_own_ms: Maximum quiet period that an event may set for its group, in ms; None if events cannot set one. If it is
                given, the events must be decoded with the fold that :func:`fold_to_read` returns. Otherwise, events that set a
                quiet period could not be told from events that take the default.
            dedupe_ms: An event is a duplicate if the last event of its group with its id is at most this many ms older; None if
                events have no ids. The bounds that close a group in between are not considered.
            auto: Computes the quiet period after each event if it sets itself; otherwise None.
        """
        self.events = self.from_ms = self.to_ms = self.halvings = 0
        self.sets = NameSets(max_changed)
        self.late = np.zeros(len(LATE_STEPS_MS), np.int64)
        self.future = self.at_midnight = 0
        self._now_ms = now_ms
        self._capacity = capacity
        self._batch = min(_BATCH, capacity // 8 + 1)
        self.is_cut = False
        self._used = self._left_out = 0
        self._hashes = np.empty(capacity, np.uint64)
        # Four bytes a score are enough while the range is shorter than MAX_SHORT_MS: they are read relative to the first score.
        self._scores: Times = np.empty(capacity, np.uint32)
        self._numbers = np.empty(capacity, np.uint32)
        self._extras: dict[str, NDArray[Any]] = {}
        if reads_details:
            self._extras["details"] = np.empty(capacity, np.uint32)
        if longest_own_ms is not None:
            self._extras["own_quiet"] = np.empty(capacity, np.uint32 if longest_own_ms <= MAX_SHORT_MS else np.int64)
        if auto is not None:
            self._extras["auto_quiet"] = np.empty(capacity, np.uint32 if auto.goal.at_most_ms <= MAX_SHORT_MS else np.int64)
        self.auto = auto
        self.has_ids = dedupe_ms is not None
        self._dedupe_ms = dedupe_ms or 0
        if self.has_ids:
            self._extras["ids"] = np.empty(capacity, np.uint64)
        self._longest_own_ms = longest_own_ms
        self.own_periods = None if longest_own_ms is None else 0
        self._keeps_events = keeps_events
        self._clocks: dict[int, int] = {}
        self._groups_seen = self._bytes_seen = 0
        self._firsts = np.empty(0, bool)
        self._is_sorted = False

    def add(self, partition: int, events: Iterable[FoldInput]) -> None:
        """Add events of a partition in offset order, after those added before, and before the columns are sorted.

        The score of an event is the highest record timestamp of the partition so far, where a timestamp after ``now_ms`` counts as
        ``now_ms``. :class:`streams_app.folding.core.chunks.ChunkCutter` computes the same scores for a backlog with the backlog
        policy ``sessions``.
        """
        if self._is_sorted:
            raise RuntimeError("events cannot be added after the columns are sorted")
        rest = iter(events)
        shift = np.uint64(partition * _SPREAD % 2**_BITS)
        while batch := list(islice(rest, self._batch)):
            _, stamps, members, names, *_ = zip(*batch, strict=True)
            extras = {name: self._extra_of(name, partition, batch) for name in self._extras}
            hashes = np.fromiter(map(hash, members), np.int64, len(batch)).view(np.uint64) + shift
            times = np.fromiter(stamps, np.int64, len(batch))
            scores = np.minimum(times, self._now_ms)
            scores[0] = max(int(scores[0]), self._clocks.get(partition, 0))
            np.maximum.accumulate(scores, out=scores)
            self._judge(times, scores)
            self._count(partition, int(scores[0]), int(scores[-1]), len(batch))
            distinct = set(members)
            self._groups_seen += len(distinct)
            self._bytes_seen += sum(map(len, distinct))
            self._keep(hashes, scores, names, extras)

    def _extra_of(self, name: str, partition: int, batch: Sequence[Any]) -> NDArray[Any]:
        """Return the values of a column of :attr:`_extras` for a batch of events; count :attr:`own_periods`."""
        if name == "details":
            return np.fromiter(map(_details_of, batch), np.uint32, len(batch))
        if self.auto is not None and name == "auto_quiet":
            return self.auto.quiet_after(partition, batch)
        if name == "ids":
            return np.fromiter((hash((event.group, event.id)) for event in batch), np.int64, len(batch)).view(np.uint64)
        shorter = np.fromiter((event.shorter_ms for event in batch), np.int64, len(batch))
        own = np.where(shorter < 0, 0, (self._longest_own_ms or 0) - shorter)
        self.own_periods = (self.own_periods or 0) + int(np.count_nonzero(own))
        return own

    def _count(self, partition: int, first_ms: int, last_ms: int, events: int) -> None:
        from_ms = min(self.from_ms, first_ms) if self.events else first_ms
        to_ms = max(self.to_ms, last_ms)
        if to_ms - from_ms > MAX_SHORT_MS and self._scores.itemsize < _LONG_BYTES:
            self._widen()
        self.from_ms, self.to_ms = from_ms, to_ms
        self.events += events
        self._clocks[partition] = last_ms

    def _judge(self, times: NDArray[np.int64], scores: NDArray[np.int64]) -> None:
        """Count implausible times: late, in the future, or at midnight."""
        self.future += int(np.count_nonzero(times > self._now_ms))
        self.at_midnight += int(np.count_nonzero(times % _DAY_MS == 0))
        late_ms = scores - times
        if late_ms.any():
            self.late += [int(np.count_nonzero(late_ms >= step_ms)) for step_ms in LATE_STEPS_MS]

    def _widen(self) -> None:
        scores = np.empty(self._capacity, np.int64)
        for block in self._blocks():
            scores[block] = self._after_ms(block)
            scores[block] += self.from_ms
        self._scores = scores

    def _after_ms(self, block: slice | NDArray[np.uint32]) -> Times:
        if self._scores.itemsize == _LONG_BYTES:
            return self._scores[block] - self.from_ms
        return self._scores[block] - np.uint32(self.from_ms & MAX_SHORT_MS)

    def _blocks(self) -> Iterable[slice]:
        return (slice(begin, min(self._used, begin + _BLOCK)) for begin in range(0, self._used, _BLOCK))

    def _keep(
        self, hashes: NDArray[np.uint64], scores: NDArray[np.int64], names: Sequence[Mapping[str, Any] | int],
        extras: dict[str, NDArray[Any]],
    ) -> None:  # fmt: skip
        """Store a batch, or the part of it that belongs to the sample; if :attr:`is_cut`, only count it."""
        while True:
            if self.halvings:
                kept = self._is_sampled(hashes)
                hashes, scores, names = hashes[kept], scores[kept], list(compress(names, kept.tolist()))
                extras = {name: extra[kept] for name, extra in extras.items()}
            if self.is_cut:
                self._left_out += len(hashes)
                return
            end = self._used + len(hashes)
            if end <= self._capacity:
                break
            self._halve()
        self._hashes[self._used : end] = hashes
        self._scores[self._used : end] = scores.astype(self._scores.dtype)
        for name, extra in extras.items():
            self._extras[name][self._used : end] = extra
        self._numbers[self._used : end] = self.sets.numbers(names)
        self._used = end
        if self.sets.is_full:
            self._make_room_for_names()

    def _make_room_for_names(self) -> None:
        """Remove unused sets of names, then groups."""
        self._renumber()
        while self.sets.is_crowded and not self.is_cut:
            self._halve()
            self._renumber()

    def _is_sampled(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return hashes >> np.uint64(_BITS - self.halvings) == 0

    def _halve(self) -> None:
        """Drop half of the groups; if too few would remain, drop all later events instead."""
        self.halvings += 1
        if self._is_nearly_empty():
            self.halvings -= 1
            self.is_cut = True
            return
        used = 0
        for block in self._blocks():
            kept = self._is_sampled(self._hashes[block])
            end = used + int(np.count_nonzero(kept))
            for column in (self._hashes, self._scores, self._numbers, *self._extras.values()):
                column[used:end] = column[block][kept]
            used = end
        self._used = used

    def _is_nearly_empty(self) -> bool:
        found: set[int] = set()
        for block in self._blocks():
            hashes = np.unique(self._hashes[block])
            found.update(hashes[self._is_sampled(hashes)][:FEWEST_GROUPS].tolist())
            if len(found) >= FEWEST_GROUPS:
                return False
        return True

    def _renumber(self) -> None:
        is_used = np.zeros(len(self.sets), bool)
        for block in self._blocks():
            is_used[self._numbers[block]] = True
        numbers = self.sets.keep(is_used)
        for block in self._blocks():
            self._numbers[block] = numbers[self._numbers[block]]

    # ---- used by a replay

    @property
    def share(self) -> float:
        """Probability that a group is kept: 1, or less if the events did not fit."""
        return 0.5**self.halvings

    @property
    def part(self) -> float:
        """Stored fraction of the events of the kept groups: 1, or less if :attr:`is_cut`."""
        return self._used / (self._used + self._left_out) if self._left_out else 1.0

    @property
    def key_bytes(self) -> float:
        """Mean length in bytes of a group key as stored in Redis; 0 if there are no events."""
        return self._bytes_seen / max(1, self._groups_seen)

    def sort(self) -> None:
        """Sort the events by group; those of one group keep their order. No events can be added afterwards."""
        if self._is_sorted:
            return
        self._is_sorted = True
        # Each column is freed as soon as it is no longer needed.
        hashes, self._hashes = self._hashes[: self._used], np.empty(0, np.uint64)
        order, self._firsts = order_of(hashes, self.halvings)
        del hashes
        after_ms: Times = np.empty(self._used, self._scores.dtype)
        for block in self._blocks():
            after_ms[block] = self._after_ms(order[block])
        self._scores = after_ms
        for name, unsorted in self._extras.items():
            extra = np.empty(self._used, unsorted.dtype)
            for block in self._blocks():
                extra[block] = unsorted[order[block]]
            self._extras[name] = extra
        if self.has_ids:
            order = self._drop_duplicates(order)
        if not self.sets.may_close:
            order = order[:NUMBERED]
        numbers = np.empty(len(order), np.uint32)
        for begin in range(0, len(order), _BLOCK):
            numbers[begin : begin + _BLOCK] = self._numbers[order[begin : begin + _BLOCK]]
        self._numbers = numbers

    def _drop_duplicates(self, order: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Remove duplicates from the sorted columns; return the rest of ``order``, their original positions."""
        ids, events = self._extras.pop("ids"), self._used
        by_id = np.argsort(ids, kind="stable")
        same = ids[by_id[1:]] == ids[by_id[:-1]]
        same &= np.diff(self._scores[by_id].astype(np.int64)) <= self._dedupe_ms
        is_kept = np.ones(events, bool)
        is_kept[by_id[1:][same]] = False
        self._firsts, self._scores = self._firsts[is_kept], self._scores[is_kept]
        self._extras = {name: extra[is_kept] for name, extra in self._extras.items()}
        self._used = len(self._firsts)
        share = self._used / max(1, events)
        # If the columns are a sample, or cut, the events that they do not have are assumed to have as many duplicates.
        self._left_out, self.events = round(self._left_out * share), round(self.events * share)
        return order[is_kept]

    def forget_numbers(self) -> None:
        """Free the memory of :attr:`numbers`, except that of the first :data:`NUMBERED` sorted events."""
        self._numbers = self._numbers[:NUMBERED].copy()

    def gaps(self) -> tuple[int, int] | None:
        """Sort the columns; return the median and the longest gap between events of a group, in ms; None if there is no gap."""
        self.sort()
        longest_ms, some = -1, []
        stride = self._used // _BLOCK + 1
        for begin in range(1, self._used, _BLOCK):
            end = min(begin + _BLOCK, self._used)
            gaps = np.diff(self._scores[begin - 1 : end].astype(np.int64))[~self._firsts[begin:end]]
            longest_ms = max(longest_ms, int(gaps.max(initial=-1)))
            some.append(gaps[::stride])
        return (int(np.median(np.concatenate(some))), longest_ms) if longest_ms >= 0 else None

    @property
    def firsts(self) -> NDArray[np.bool_]:
        return self._firsts

    @property
    def after_ms(self) -> Times:
        """The score of each sorted event, in ms after the score of the earliest of all read events."""
        return self._scores

    @property
    def kept_bytes(self) -> NDArray[np.int64] | None:
        """Bytes that each sorted event adds to the size of its group; None unless the fold keeps events (``keep = "events"``)."""
        return (self._extras["details"] >> 1).astype(np.int64) if self._keeps_events else None

    @property
    def closing(self) -> NDArray[np.bool_] | None:
        """Whether each sorted event closes its group by ``close_when``; None if the columns do not have ``reads_details``."""
        return (self._extras["details"] & 1).astype(bool) if "details" in self._extras else None

    @property
    def own_quiet_ms(self) -> Times | None:
        """The quiet period that each sorted event sets, in ms; 0 for the default. None if no event of the fold can set one."""
        return self._extras.get("own_quiet")

    @property
    def auto_quiet_ms(self) -> Times | None:
        """The quiet period after each sorted event if it had set itself, in ms; None without :attr:`auto`."""
        return self._extras.get("auto_quiet")

    @property
    def numbers(self) -> NDArray[np.uint32]:
        """The number in :attr:`sets` for each sorted event; only :data:`NUMBERED` if no group can exceed the bound on names."""
        return self._numbers


def fold_to_read(fold: Fold) -> Fold:
    """Return the fold with which events are decoded for :class:`Columns`, which must know the events that set their quiet period.

    If events can set a quiet period, it is a copy with a default that is longer than any that an event may set. So ``shorter_ms``
    of a decoded event is negative if the event takes the default, and only then.
    """
    rule = fold.quiet_period
    if not isinstance(rule, QuietPeriod):
        return fold
    beyond = rule.at_most + timedelta(milliseconds=1)
    return fold.model_copy(update={"quiet_period": rule.model_copy(update={"default": beyond})})


def _details_of(event: Any) -> int:
    return int(event.closes) | (size_of_event(event.json) << 1 if event.json else 0)


POSITION_BITS: Final = 24
"""Number of low bits of a sort key that hold the position of an event. They limit the events to 16 777 216."""

_REST: Final = np.uint64((1 << POSITION_BITS) - 1)
_SORT_BLOCK: Final = 1 << 19


def order_of(hashes: NDArray[np.uint64], leading_zero_bits: int) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Sort events by the hash of their group, which is overwritten; the events of one group keep their order.

    The first 40 bits of a hash and the position of its event form one number, and these numbers are sorted in place. This takes no
    extra memory, and is far faster than sorting positions by hash. Groups with the same 40 bits are separated afterwards.

    Returns:
        For each event in sorted order, its original position, and whether it is the first of its group.
    """
    events = len(hashes)
    if events > 1 << POSITION_BITS:
        raise ValueError(f"more than {1 << POSITION_BITS} events")
    rest = np.empty(events, np.uint32)
    for begin in range(0, events, _SORT_BLOCK):
        block = hashes[begin : begin + _SORT_BLOCK]
        block <<= np.uint64(leading_zero_bits)
        rest[begin : begin + _SORT_BLOCK] = block & _REST
        block &= ~_REST
        block |= np.arange(begin, begin + len(block), dtype=np.uint64)
    hashes.sort()
    order, firsts = np.empty(events, np.uint32), np.ones(events, bool)
    for begin in range(0, events, _SORT_BLOCK):
        block = hashes[begin : begin + _SORT_BLOCK]
        order[begin : begin + _SORT_BLOCK] = block & _REST
        firsts[begin + 1 : begin + len(block)] = (block[1:] ^ block[:-1]) > _REST
        if begin:
            firsts[begin] = (block[0] ^ hashes[begin - 1]) > _REST
    _part(rest, order, firsts)
    return order, firsts


def _part(rest: NDArray[np.uint32], order: NDArray[np.uint32], firsts: NDArray[np.bool_]) -> None:
    """Separate groups whose hashes have the same first bits, by the remaining bits."""
    for begin in range(1, len(order), _SORT_BLOCK):
        end = min(begin + _SORT_BLOCK, len(order))
        rests = rest[order[begin - 1 : end]]
        clashes = np.flatnonzero(~firsts[begin:end] & (rests[1:] != rests[:-1])) + begin
        while len(clashes):
            clash = int(clashes[0])
            low = clash - int(firsts[clash::-1].argmax())
            after = firsts[clash + 1 :]
            high = clash + 1 + (int(after.argmax()) if after.any() else len(after))
            mixed = order[low:high]
            mixed[:] = mixed[np.argsort(rest[mixed], kind="stable")]
            firsts[low + 1 : high] = rest[mixed[1:]] != rest[mixed[:-1]]
            clashes = clashes[clashes >= high]
