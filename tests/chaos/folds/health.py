"""Health of workers during an outage, sampled from outside and judged by rules that do not depend on the implementation.

* If every worker sees an outage, no worker may be ready more than 12 s after its begin.
* Lag does not fall during an outage, because events cannot be read, or their state cannot be stored. The first seconds are left
  out, in which workers fold events that were fetched before.
* While only Redis is down, lag rises by the number of events that are produced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter

from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.stage import Outage, Stage
from tests.helpers.worker.workers import WorkerProcess

SAMPLE_SECONDS = 0.5
REPORT_SECONDS = 12.0
SETTLED_SECONDS = 4.0
"""Time until fetched events are folded and produced events are part of the lag."""


@dataclass(frozen=True)
class Sample:
    """The status of one worker.

    Attributes:
        at: Time of the request by the event loop's clock: a busy machine may take seconds for the response.
        lag: Lag of its fold, over the whole consumer group.
        acknowledged: Number of events acknowledged to the load at the time of the request.
    """

    at: float
    pid: int
    is_ready: bool
    lag: float
    acknowledged: int


def faults_of(outages: Sequence[Outage], samples: Sequence[Sample]) -> list[str]:
    """Return the violations in the reported health of workers."""
    found = []
    for outage in outages:
        for pid, inside in _inside(outage, samples):
            found += [f"worker {pid} {fault}" for fault in _faults_in(outage, inside)]
    return found


def _inside(outage: Outage, samples: Sequence[Sample]) -> Iterator[tuple[int, list[Sample]]]:
    """Return the samples taken during an outage, by worker."""
    by_worker = sorted((each for each in samples if outage.begin <= each.at <= outage.end), key=attrgetter("pid", "at"))
    for pid, group in groupby(by_worker, key=attrgetter("pid")):
        yield pid, list(group)


def _faults_in(outage: Outage, samples: Sequence[Sample]) -> list[str]:
    found = []
    late = [each for each in samples if each.is_ready and each.at - outage.begin > REPORT_SECONDS]
    if late:
        found.append(f"was ready {late[0].at - outage.begin:.1f} s into an outage of {outage.what}")
    settled = [each for each in samples if each.at - outage.begin > SETTLED_SECONDS]
    falls = [(former.lag, now.lag) for former, now in pairwise(settled) if now.lag < former.lag]
    if falls:
        found.append(f"reported a lag that fell in an outage of {outage.what}: {falls[:3]}")
    if outage.what == "redis" and settled:
        last = settled[-1]
        acknowledged = [each.acknowledged for each in samples if each.at <= last.at - SETTLED_SECONDS]
        produced = acknowledged[-1] - acknowledged[0] if acknowledged else 0
        if last.lag < produced:
            found.append(f"reported a lag of {last.lag:.0f} in an outage of redis in which {produced} events arrived")
    return found


def reported_seconds(outages: Sequence[Outage], samples: Sequence[Sample]) -> list[float]:
    """Return the seconds from the begin of each outage until no worker was ready, for outages that every worker reported."""
    found = []
    for outage in outages:
        lasts = [_reported_at(inside) for _, inside in _inside(outage, samples)]
        if lasts and None not in lasts:
            found.append(round(max(last - outage.begin for last in lasts if last is not None), 1))
    return found


def _reported_at(samples: Sequence[Sample]) -> float | None:
    """Return the time from which a worker was not ready; it may have had another reason before."""
    ready = [number for number, each in enumerate(samples) if each.is_ready]
    first = ready[-1] + 1 if ready else 0
    return samples[first].at if first < len(samples) else None


@dataclass
class Health:
    """Request the health of every worker of a run twice a second."""

    stage: Stage
    acknowledged: Callable[[], int]
    samples: list[Sample] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the requests."""
        self._task = asyncio.create_task(self._ask_forever())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _ask_forever(self) -> None:
        while True:
            await asyncio.gather(*(self._ask(worker) for worker in self.stage.workers))
            await asyncio.sleep(SAMPLE_SECONDS)  # between two samples

    async def _ask(self, worker: WorkerProcess) -> None:
        at, acknowledged = asyncio.get_running_loop().time(), self.acknowledged()
        status, _ = await worker.get("/health/ready")
        _, page = await worker.get("/metrics")
        lag = _lag(page)
        if status and lag is not None:
            self.samples.append(Sample(at, worker.pid, status == 200, lag, acknowledged))


def _lag(page: str) -> float | None:
    for family in text_string_to_metric_families(page):
        if family.name == "streams_app_lag_events":
            return float(sum(sample.value for sample in family.samples))
    return None
