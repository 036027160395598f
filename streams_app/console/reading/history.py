"""The last hour of the metrics of each worker, in memory of bounded size (pure).

A sample is stored every 5 s in a ring for each series. Workers count since their start, so rates are computed for each worker and
added; a counter that has become smaller belongs to a worker that was restarted.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, TypeVar

from streams_app.console.reading.samples import Labels, Samples

EVERY_MS: Final = 5_000
SLOTS: Final = 720
"""Samples of one hour."""

MAX_WORKERS: Final = 64
MAX_SERIES: Final = 6_000
"""Maximum number of series of all workers together. Each takes 6 kB: 35 MB in total."""

LONGEST_GAP: Final = 6
"""Over at most this many missing samples, a rate is the mean; over more, it is unknown."""

NO_LABELS: Final[Mapping[str, str]] = {}
_EMPTY: Final = array("d", [math.nan] * SLOTS)

T = TypeVar("T")

Points = Sequence[float | None]
"""Values at equal distances, the oldest first; None: unknown."""


@dataclass(slots=True)
class _WorkerRings:
    series: dict[str, dict[Labels, array[float]]] = field(default_factory=dict)
    slots: array[int] = field(default_factory=lambda: array("q", [-1] * SLOTS))
    first: int = -1
    last: int = -1

    def at(self, values: array[float], slot: int, back: int) -> tuple[int, float] | None:
        """Return the slot and value of the newest sample among a slot and the ``back - 1`` before it; None: there is none."""
        for one in range(slot, max(slot - back, self.first - 1), -1):
            if self.slots[one % SLOTS] == one and not math.isnan(value := values[one % SLOTS]):
                return one, value
        return None

    def begun(self, name: str) -> array[float]:
        """Return an empty ring. A counter with labels appears when it is first increased: its last value before was 0."""
        values = _EMPTY[:]
        if name.endswith("_total") and self.last >= 0:
            values[self.last % SLOTS] = 0.0
        return values

    def rings(self) -> list[array[float]]:
        return [values for of_name in self.series.values() for values in of_name.values()]


class History:
    """Rings of the metrics of workers; one object for one application.

    Attributes:
        left_out: Number of series that were not stored, because there are too many.
    """

    def __init__(self) -> None:
        self._workers: dict[str, _WorkerRings] = {}
        self._first_slot: int | None = None
        self.left_out = 0

    def add(self, worker: str, at_ms: int, samples: Samples) -> None:
        """Store the metrics of a worker; of several samples within 5 s, the last one counts."""
        slot, at = at_ms // EVERY_MS, at_ms // EVERY_MS % SLOTS
        if worker not in self._workers and not self._make_room(slot):
            return
        ring = self._workers.setdefault(worker, _WorkerRings())
        self._first_slot = slot if self._first_slot is None else min(self._first_slot, slot)
        for values in ring.rings():
            values[at] = math.nan
        self.left_out = 0
        count = sum(len(one.rings()) for one in self._workers.values())
        for (name, labels), value in samples.values.items():
            of_name = ring.series.setdefault(name, {})
            if labels in of_name:
                of_name[labels][at] = value
            elif count < MAX_SERIES:
                of_name[labels] = ring.begun(name)
                of_name[labels][at] = value
                count += 1
            else:
                self.left_out += 1
        ring.slots[at], ring.last = slot, slot
        ring.first = slot if ring.first < 0 else ring.first

    def since_ms(self, now_ms: int) -> int:
        """Return the time of the oldest sample, at most an hour ago; ``now_ms`` if there is none."""
        if self._first_slot is None:
            return now_ms
        return max(self._first_slot, now_ms // EVERY_MS - SLOTS + 1) * EVERY_MS

    def gauge(
        self,
        name: str,
        now_ms: int,
        labels: Mapping[str, str] = NO_LABELS,
        *,
        how: Literal["sum", "max"] = "sum",
        slots: int = SLOTS,
        step: int = 1,
        worker: str | None = None,
    ) -> Points:
        """Return a gauge over the last slots, combined over workers and other labels; each point is the last of ``step`` slots.

        Args:
            worker: Only this worker is read.
        """
        ends = _ends(now_ms, slots, step)
        columns = [[ring.at(values, end, step) for end in ends] for ring, values in self._of(name, labels, worker)]
        rows = ([sample[1] for sample in row if sample is not None] for row in _rows(columns, len(ends)))
        return [(math.fsum(row) if how == "sum" else max(row)) if row else None for row in rows]

    def rate(
        self, name: str, now_ms: int, labels: Mapping[str, str] = NO_LABELS, *, slots: int = SLOTS, step: int = 1,
        worker: str | None = None,
    ) -> Points:  # fmt: skip
        """Return the increase a second of a counter over the last slots, as the mean of each ``step`` slots."""
        ends = [now_ms // EVERY_MS - slots, *_ends(now_ms, slots, step)]
        back = max(step, LONGEST_GAP)
        columns = [
            _rates([ring.at(values, end, back) for end in ends], ring.at(values, ring.first, 1), step)
            for ring, values in self._of(name, labels, worker)
        ]
        rows = ([rate for rate in row if rate is not None] for row in _rows(columns, len(ends) - 1))
        return [math.fsum(row) if row else None for row in rows]

    def rate_now(self, name: str, now_ms: int, labels: Mapping[str, str] = NO_LABELS) -> float | None:
        """Return the present increase a second of a counter: the mean of the last 15 s; None: unknown."""
        (found,) = self.rate(name, now_ms, labels, slots=3, step=3)
        return found

    def increase(self, name: str, now_ms: int, slots: int, labels: Mapping[str, str] = NO_LABELS) -> float | None:
        """Return the increase of a counter over the last slots, or a part of it if a worker was restarted; None: unknown."""
        newest = now_ms // EVERY_MS
        found = []
        for ring, values in self._of(name, labels):
            last = ring.at(values, newest, LONGEST_GAP)
            first = ring.at(values, max(newest - slots, ring.first), 1) or ring.at(values, newest - slots, LONGEST_GAP)
            if last is not None and first is not None and last[0] > first[0]:
                found.append(_more(first[1], last[1]))
        return math.fsum(found) if found else None

    def holds_since(self, name: str, worker: str, now_ms: int, labels: Mapping[str, str] = NO_LABELS) -> int | None:
        """Return since when a gauge of a worker has its present value, as far as the samples go back; None: it has none."""
        points = self.gauge(name, now_ms, labels, how="max", worker=worker)
        known = [(slot, value) for slot, value in enumerate(points) if value is not None]
        since = None
        for slot, value in reversed(known):
            if value != known[-1][1]:
                break
            since = slot
        return None if since is None else (now_ms // EVERY_MS - SLOTS + 1 + since) * EVERY_MS

    def _make_room(self, slot: int) -> bool:
        """Forget workers that have not answered for an hour; return whether another worker may be stored."""
        for url in [url for url, ring in self._workers.items() if slot - ring.last >= SLOTS]:
            del self._workers[url]
        return len(self._workers) < MAX_WORKERS

    def _of(
        self, name: str, labels: Mapping[str, str], worker: str | None = None
    ) -> list[tuple[_WorkerRings, array[float]]]:  # fmt: skip
        wanted = labels.items()
        return [
            (ring, values)
            for url, ring in self._workers.items()
            if worker in (None, url)
            for of, values in ring.series.get(name, {}).items()
            if wanted <= set(of)
        ]


def _ends(now_ms: int, slots: int, step: int) -> list[int]:
    """Return the last slot of each point."""
    newest = now_ms // EVERY_MS
    return list(range(newest - slots + step, newest + 1, step))


def _rows(columns: Sequence[Sequence[T]], length: int) -> Iterable[Sequence[T]]:
    return zip(*columns, strict=True) if columns else [()] * length


_Sample = tuple[int, float] | None


def _rates(samples: Sequence[_Sample], first: _Sample, step: int) -> list[float | None]:
    """Return the increase a second between neighbors; over missing samples, it is spread evenly.

    Args:
        first: The first sample of all, for the point in which it is.
    """
    found: list[float | None] = [None] * (len(samples) - 1)
    for at, (earlier, after) in enumerate(pairwise(samples)):
        before = earlier
        if before is None and after is not None and first is not None and after[0] - step < first[0]:
            before = first
        if before is None or after is None or after[0] <= before[0]:
            continue
        passed = after[0] - before[0]
        begin = max(0, at + 1 - max(1, passed // step))
        found[begin : at + 1] = [_more(before[1], after[1]) * 1_000 / EVERY_MS / passed] * (at + 1 - begin)
    return found


def _more(before: float, after: float) -> float:
    """Return the increase of a counter; one that has become smaller began at 0."""
    return after - before if after >= before else after
