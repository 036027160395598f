"""The last hour of the metrics of each worker, in memory of bounded size (pure).

A sample is stored every 5 s in a ring for each series. Workers count since their start, so rates are computed for each worker and
added; a counter that has become smaller belongs to a worker that was restarted.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

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
_LEFT_OUT: Final = ("_created",)

Points = Sequence[float | None]
"""Values at equal distances, the oldest first; None: unknown."""


@dataclass(slots=True)
class _WorkerRings:
    series: dict[str, dict[Labels, array[float]]] = field(default_factory=dict)
    slots: array[int] = field(default_factory=lambda: array("q", [-1] * SLOTS))
    last: int = -1

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
            if name.endswith(_LEFT_OUT):
                continue
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
    ) -> Points:
        """Return a gauge over the last slots, combined over workers and other labels; each point is the last of ``step`` slots."""
        combine = sum if how == "sum" else max
        columns = [self._values(ring, values, now_ms, slots) for ring, values in self._of(name, labels)]
        points = [_combined([column[at] for column in columns], combine) for at in range(slots)]
        return [_last(points[at : at + step]) for at in range(0, slots, step)]

    def rate(self, name: str, now_ms: int, labels: Mapping[str, str] = NO_LABELS, *, slots: int = SLOTS, step: int = 1) -> Points:
        """Return the increase a second of a counter over the last slots, as the mean of each ``step`` slots."""
        # One more slot before the first: an increase is the difference to the slot before.
        columns = [
            _increases(self._values(ring, values, now_ms, slots + LONGEST_GAP))[LONGEST_GAP:]
            for ring, values in self._of(name, labels)
        ]
        points = [_combined([column[at] for column in columns], sum) for at in range(slots)]
        return [_mean(points[at : at + step]) for at in range(0, slots, step)]

    def rate_now(self, name: str, now_ms: int, labels: Mapping[str, str] = NO_LABELS) -> float | None:
        """Return the present increase a second of a counter: the mean of the last 15 s; None: unknown."""
        return _mean(self.rate(name, now_ms, labels, slots=4)[-3:])

    def increase(self, name: str, now_ms: int, slots: int, labels: Mapping[str, str] = NO_LABELS) -> float | None:
        """Return the increase of a counter over the last slots; None: unknown."""
        found = [value for value in self.rate(name, now_ms, labels, slots=slots) if value is not None]
        return sum(found) * EVERY_MS / 1_000 if found else None

    def _make_room(self, slot: int) -> bool:
        """Forget workers that have not answered for an hour; return whether another worker may be stored."""
        for url in [url for url, ring in self._workers.items() if slot - ring.last >= SLOTS]:
            del self._workers[url]
        return len(self._workers) < MAX_WORKERS

    def _of(self, name: str, labels: Mapping[str, str]) -> list[tuple[_WorkerRings, array[float]]]:
        wanted = labels.items()
        return [
            (ring, values)
            for ring in self._workers.values()
            for of, values in ring.series.get(name, {}).items()
            if wanted <= set(of)
        ]

    @staticmethod
    def _values(ring: _WorkerRings, values: array[float], now_ms: int, slots: int) -> list[float]:
        newest = now_ms // EVERY_MS
        wanted = range(newest - min(slots, SLOTS) + 1, newest + 1)
        found = [values[slot % SLOTS] if ring.slots[slot % SLOTS] == slot else math.nan for slot in wanted]
        return [math.nan] * (slots - len(found)) + found


def _increases(values: Sequence[float]) -> list[float]:
    """Return the increase a second up to each value; NaN: unknown. Over a short gap, the increase is spread evenly."""
    found = [math.nan] * len(values)
    before = -1
    for at, value in enumerate(values):
        if math.isnan(value):
            continue
        if before >= 0 and at - before <= LONGEST_GAP:
            more = value - values[before]
            each = (more if more >= 0 else value) * 1_000 / EVERY_MS / (at - before)
            found[before + 1 : at + 1] = [each] * (at - before)
        before = at
    return found


def _combined(values: Iterable[float], combine: object) -> float | None:
    present = [value for value in values if not math.isnan(value)]
    if not present:
        return None
    return math.fsum(present) if combine is sum else max(present)


def _last(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return present[-1] if present else None


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None
