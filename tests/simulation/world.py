"""The protocol under random schedules: the product's own classes and scripts, everything around them simulated.

A schedule is determined by its mix of faults and its seed, except for the order in which Redis removes staged data.
:func:`run_schedule` returns the first violation.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import redis

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.ranges import RESET
from tests.helpers.virtual_loop import VirtualLoop
from tests.simulation.faults import FAULTS, append_some
from tests.simulation.folding import Folding
from tests.simulation.group import SimulatedGroup
from tests.simulation.kafka import Log
from tests.simulation.ledger import positions_in
from tests.simulation.mix import Mix
from tests.simulation.redis import Server
from tests.simulation.subject import Subject
from tests.simulation.worker import CURRENT, Worker

FAULTY_SECONDS = 14.0
DRAIN_SECONDS = 200.0
"""Virtual time within which every event must be finished after the faults: events that kill their process run one by one."""
FRAGILE_LOSS = 0.15
IDLE_SECONDS = 4.0
BEHIND_MS = (5_000, 3_600_000)
SOURCE = "t"


@dataclass(slots=True)
class Outcome:
    """The result of a schedule."""

    mix: str
    seed: int
    violations: list[str] = field(default_factory=list)
    events: int = 0
    records: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        first = "\n  ".join(self.violations[:3])
        return f"run_schedule(…, {self.mix!r}, {self.seed}) after {self.counts}:\n  {first}"


class World:
    """The simulated system of one schedule."""

    def __init__(
        self, client: redis.Redis, words: str, seed: int, tolerated: frozenset[str], subject: Callable[[World], Subject]
    ) -> None:
        self.mix = Mix.of(words)
        self._tolerated = tolerated
        self.rng = random.Random(f"{words}/{seed}")
        self.app_id = f"sim-{self.rng.getrandbits(48):x}"
        self.is_faulty = True
        self.violations: list[str] = []
        self.workers: list[Worker] = []
        self.counts: dict[str, int] = {}
        self.history_ms = 0
        self.behind_ms = self.rng.choice(BEHIND_MS) if "behind" in self.mix.faults else 0
        self.future_share = self.rng.choice([0.0, 0.0, 0.02])
        self.log = Log(TP(SOURCE, 0))
        self.subject = subject(self)
        self.folds = list(self.subject.keys)
        self.ledger = self.subject.ledger
        self.server = Server(client, self.subject, self)
        self.group = SimulatedGroup()
        self._older_worker = _older_worker(self.rng_of("older"))
        self._slow = self.rng.choice([0.002, 0.01, 0.03])
        self._loss = self.rng.choice([0.01, 0.04]) * self.mix.faults.get("lossy", 0)

    @property
    def committed(self) -> PartitionCommit | None:
        """Return the commit of the source partition."""
        return self.group.committed.get(self.log.tp)

    @committed.setter
    def committed(self, committed: PartitionCommit | None) -> None:
        self.group.committed = {self.log.tp: committed} if committed else {}

    # ---- random numbers

    def now(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    def rng_of(self, name: str) -> random.Random:
        """Random numbers of one actor, so that the order in which a set wakes several actors at one time has no effect."""
        return random.Random(f"{self.app_id}/{name}")

    def latency_seconds(self, rng: random.Random | None = None) -> float:
        """Return the latency of half a call."""
        rng = rng or self.rng
        slow = 0.3 if self.is_faulty and rng.random() < 0.02 else self._slow
        return rng.uniform(0.0, slow)

    def has_older_worker(self) -> bool:
        """Whether an older worker owns a shard of another partition now."""
        begin, end = self._older_worker
        return begin <= self.now() < end

    def has_fault(self, chance: float, rng: random.Random | None = None) -> bool:
        """Whether a fault of this probability happens now."""
        return self.is_faulty and (rng or self.rng).random() < chance

    def loses_message(self, call: str, rng: random.Random | None = None) -> bool:
        """Whether a request or a reply is lost now."""
        chance = FRAGILE_LOSS if call in self.mix.fragile else self._loss
        return chance > 0 and self.has_fault(chance, rng)

    def is_snapshot_due(self, has_sealed: bool) -> bool:
        """Whether to take a snapshot of Redis for a later rollback; with ``rewind``, mostly one with unsent records."""
        if "rewind" in self.mix.faults:
            return has_sealed and self.has_fault(0.5)
        return "rollback" in self.mix.faults and self.has_fault(0.08)

    def later(self, execute: Callable[[], Any]) -> None:
        """Deliver a request after its caller has given up."""

        def arrive() -> None:
            with suppress(Exception):
                execute()

        asyncio.get_running_loop().call_later(self.rng.uniform(0.0, 2.0), arrive)

    # ---- events of the schedule

    def report_fault(self, kind: str, what: str) -> None:
        """Record a violation."""
        if kind in self._tolerated:
            self.count(kind)
            return
        worker = CURRENT.get(None)
        self.violations.append(f"{kind}: {what} (after {self.now():.2f} s, worker {worker.name if worker else '-'})")

    def count(self, name: str) -> None:
        """Record a fault."""
        self.counts[name] = self.counts.get(name, 0) + 1

    def new_worker(self) -> Worker:
        """Start a worker process."""
        worker = Worker(self, f"w{len(self.workers)}")
        self.workers.append(worker)
        return worker

    async def rebalance(self, to: Worker) -> None:
        """Assign the partition to a member, without waiting for members that do not respond."""
        group = self.group
        async with group.rebalancing:
            for member in {id(member): member for member in (group.worker, to) if member}.values():
                if member.is_responsive:
                    await member.leave()
            group.give(to.name)
            group.worker, group.bumped_at = to, self.now()
            if to.is_responsive and "clocks" in self.mix.faults:
                await to.compare_clocks()
            if to.is_responsive:
                to.join(group.generation)

    async def _replace_the_dead(self) -> None:
        while True:
            await asyncio.sleep(0.5)  # virtual time: the interval of a poll
            worker = self.group.worker
            if worker is None or not worker.is_alive or worker.generation != self.group.generation:
                await asyncio.sleep(self.rng.uniform(0.0, 1.0))  # virtual time: a process starts
                await self.rebalance(self.new_worker())

    # ---- the schedule

    async def run(self) -> None:
        """Run the faults, end them, drain, and check the final state."""
        append_some(self, self.rng.randint(20, 60) if "history" in self.mix.faults else self.rng.randint(0, 8))
        background = [asyncio.create_task(self._replace_the_dead()), asyncio.create_task(self._produce_events())]
        await self.rebalance(self.new_worker())
        try:
            while self.now() < FAULTY_SECONDS and not self.violations:
                await asyncio.sleep(self.rng.expovariate(1 / 0.12))  # virtual time: until the next fault
                for name, (chance, fault) in FAULTS.items():
                    if name in self.mix.faults and self.rng.random() < chance * self.mix.faults[name]:
                        self.count(name)
                        await fault(self)
            await self._heal()
            await self._drain()
        finally:
            for task in background:
                task.cancel()

    async def _produce_events(self) -> None:
        silence = self.rng.uniform(FAULTY_SECONDS * 0.6, FAULTY_SECONDS)
        burst = self.rng.choice([0.05, 0.2])
        most = 20 if "history" in self.mix.faults else 12
        while self.now() < silence:
            append_some(self, 1 if self.rng.random() > burst else self.rng.randint(3, most))
            await asyncio.sleep(self.rng.expovariate(5.0))  # virtual time: until the next events

    async def _heal(self) -> None:
        self.is_faulty = False
        self.log.abort()
        for worker in self.workers:
            worker.thaw()
        owner = self.group.worker
        if "late" in self.mix.faults and owner is not None and owner.is_alive:
            if "foldset" in self.mix.faults:
                await self.rebalance(self.new_worker())  # a worker with every fold must detect it
            await asyncio.sleep(IDLE_SECONDS)  # virtual time: no events arrive
            self.server.roll_back(list(self.folds), self.rng.randint(20, 200))
            return
        # If a script failed half-way, its owner may not know the records that it sealed; the next claim sends them.
        if self.mix.has_unlike_workers or self.mix.dying or self.rng.random() < 0.5 or owner is None or not owner.is_alive:
            await self.rebalance(self.new_worker())

    async def _drain(self) -> None:
        until = self.now() + DRAIN_SECONDS
        while not self.violations and (waiting := self._waits_for()):
            if self.now() > until:
                self.report_fault("stuck", waiting)
                break
            await asyncio.sleep(0.5)  # virtual time, with a limit of its own
        for worker in self.workers:
            causes = worker.causes
            if RESET in causes and not worker.reader.was_reset:
                self.report_fault("reset", f"{worker.name} treated a batch as a reset of the reader")
            if causes and not self.mix.has_any:
                self.report_fault("resync", f"{worker.name} claimed again without a fault: {causes}")
        if not self.violations:
            self.subject.check_end()

    def _waits_for(self) -> str:
        """Return why the system is not quiet yet; empty if it is."""
        committed, end = self.committed, self.log.end
        if (
            committed is None
            or committed.offset < end
            or not set(self.folds) <= positions_in(committed).keys()
            or not self.subject.is_whole()
        ):
            state = {name: self.subject.state(name) for name in self.folds}
            return f"committed {committed}, the log ends at {end}, Redis has {state}"
        return ""


def _older_worker(rng: random.Random) -> tuple[float, float]:
    """Return when there is an older worker, in virtual seconds: in half of the schedules never, in one of eight always."""
    chance, begin = rng.random(), rng.uniform(0.0, 0.7 * FAULTY_SECONDS)
    if chance < 0.125:
        return 0.0, math.inf
    return (begin, begin + rng.uniform(1.0, 4.0)) if chance < 0.5 else (0.0, 0.0)


class _KnownLosses(logging.Handler):
    """Reads the log lines of claims about lost ranges of folds and subscribers."""

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith(("known loss", "retention overtook")) and isinstance(record.args, tuple):
            worker = CURRENT.get()
            fold, _, first, last = record.args[:4]
            worker.world.ledger.on_known_loss(str(fold), int(str(first)), int(str(last)), worker.highest_at_claim)


@contextmanager
def _listening(trace: bool) -> Iterator[None]:
    """Receive the log of the product, without printing it."""
    logger = logging.getLogger("streams_app")
    handlers: list[logging.Handler] = [_KnownLosses(), *([logging.StreamHandler()] if trace else [])]
    before = logger.level, logger.propagate
    logger.propagate = False
    logger.setLevel(logging.INFO if trace else logging.ERROR)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.level, logger.propagate = before
        logger.setLevel(before[0])
        for handler in handlers:
            logger.removeHandler(handler)


def run_schedule(
    client: redis.Redis, mix: str, seed: int, *, subject: Callable[[World], Subject] = Folding,
    tolerated: frozenset[str] = frozenset(), trace: bool = False,
) -> Outcome:  # fmt: skip
    """Run one schedule to its end or to its first violation.

    Args:
        client: Client of a real server; the schedule uses only keys of its own application.
        mix: Words, see :class:`Mix`.
        seed: Seed of all random numbers.
        subject: The processors under test.
        tolerated: Kinds of violations that are only counted.
        trace: Print the log of the product.
    """
    outcome = Outcome(mix, seed)
    with _listening(trace), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop()
        world = World(client, mix, seed, tolerated, subject)
        try:
            with world.subject.limits(seed):
                runner.run(world.run())
        finally:
            world.server.close()
    outcome.violations = world.violations
    outcome.events, outcome.records = world.log.end, world.ledger.records
    outcome.counts = {**world.counts, "events": world.log.end, "records": world.ledger.records}
    return outcome
