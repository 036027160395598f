"""What workers say of themselves while a server is away: sampled from outside, judged by rules that know nothing of how they do it.

* More than 12 s into an outage that every worker sees, none may say that it is ready.
* While it lasts lag does not fall: nobody can fold what cannot be read, or cannot be kept. The first seconds are left out, in which
  what had been fetched is folded.
* While Redis alone is away, lag rises by what is produced meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter

from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.stage import Outage, Stage
from tests.workers import WorkerProcess

SAMPLE_SECONDS = 0.5
TOLD_SECONDS = 12.0
SETTLED_SECONDS = 4.0
"""What was on its way is folded, and what has been produced has been seen."""


@dataclass(frozen=True)
class Sample:
    """What one worker said at an instant of the event loop's clock.

    Attributes:
        lag: Of its fold; the worker tells that of the whole group.
        acknowledged: Events acknowledged to the load when it was asked.
    """

    at: float
    pid: int
    is_ready: bool
    lag: float
    acknowledged: int


def faults_of(outages: Sequence[Outage], samples: Sequence[Sample]) -> list[str]:
    """What workers said that they must not say."""
    found = []
    for outage in outages:
        for pid, inside in _inside(outage, samples):
            found += [f"worker {pid} {fault}" for fault in _faults_in(outage, inside)]
    return found


def _inside(outage: Outage, samples: Sequence[Sample]) -> Iterator[tuple[int, list[Sample]]]:
    """The samples taken in an outage, by worker."""
    by_worker = sorted((each for each in samples if outage.begin <= each.at <= outage.end), key=attrgetter("pid", "at"))
    for pid, group in groupby(by_worker, key=attrgetter("pid")):
        yield pid, list(group)


def _faults_in(outage: Outage, samples: Sequence[Sample]) -> list[str]:
    found = []
    late = [each for each in samples if each.is_ready and each.at - outage.begin > TOLD_SECONDS]
    if late:
        found.append(f"was ready {late[0].at - outage.begin:.1f} s into an outage of {outage.what}")
    settled = [each for each in samples if each.at - outage.begin > SETTLED_SECONDS]
    falls = [(former.lag, now.lag) for former, now in pairwise(settled) if now.lag < former.lag]
    if falls:
        found.append(f"told a lag that fell in an outage of {outage.what}: {falls[:3]}")
    if outage.what == "redis" and settled:
        last = settled[-1]
        known = [each.acknowledged for each in samples if each.at <= last.at - SETTLED_SECONDS]
        produced = known[-1] - known[0] if known else 0
        if last.lag < produced:
            found.append(f"told a lag of {last.lag:.0f} in an outage of redis in which {produced} events had come in")
    return found


def told_seconds(outages: Sequence[Outage], samples: Sequence[Sample]) -> list[float]:
    """From the beginning of each outage until the last of the workers had said so for good; of outages that all of them told."""
    found = []
    for outage in outages:
        lasts = [_told_at(inside) for _, inside in _inside(outage, samples)]
        if lasts and None not in lasts:
            found.append(round(max(last - outage.begin for last in lasts if last is not None), 1))
    return found


def _told_at(samples: Sequence[Sample]) -> float | None:
    """When a worker was no longer ready; it may have had another reason before."""
    ready = [number for number, each in enumerate(samples) if each.is_ready]
    first = ready[-1] + 1 if ready else 0
    return samples[first].at if first < len(samples) else None


@dataclass
class Health:
    """Asks every worker of a run, twice a second."""

    stage: Stage
    acknowledged: Callable[[], int]
    samples: list[Sample] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to ask."""
        self._task = asyncio.create_task(self._ask_forever())

    async def stop(self) -> None:
        """Ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _ask_forever(self) -> None:
        while True:
            await asyncio.gather(*(self._ask(worker) for worker in self.stage.workers))
            await asyncio.sleep(SAMPLE_SECONDS)  # between two samples

    async def _ask(self, worker: WorkerProcess) -> None:
        acknowledged = self.acknowledged()
        status, _ = await worker.get("/health/ready")
        _, page = await worker.get("/metrics")
        lag = _lag(page)
        if status and lag is not None:
            at = asyncio.get_running_loop().time()
            self.samples.append(Sample(at, worker.pid, status == 200, lag, acknowledged))


def _lag(page: str) -> float | None:
    for family in text_string_to_metric_families(page):
        if family.name == "streams_app_lag_events":
            return float(sum(sample.value for sample in family.samples))
    return None
