"""The protocol under random schedules: the product's own classes and scripts, everything around them simulated.

A schedule is decided by its mix of faults and its seed, but for the order in which Redis undoes what was staged.
:func:`run_schedule` returns what went wrong first.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import redis

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import Committed
from streams_app.delivery.ranges import RESET
from tests.chaos.simulation_faults import FAULTS, append_some
from tests.chaos.simulation_folding import Folding
from tests.chaos.simulation_group import SimulatedGroup
from tests.chaos.simulation_kafka import Log
from tests.chaos.simulation_ledger import marks_in
from tests.chaos.simulation_mix import Mix
from tests.chaos.simulation_redis import Server
from tests.chaos.simulation_subject import Subject
from tests.chaos.simulation_worker import CURRENT, Worker
from tests.virtual_loop import VirtualLoop

FAULTY_SECONDS = 14.0
DRAIN_SECONDS = 200.0
"""Virtual time in which everything has to come out once the faults are over: what kills its process is run alone, one by one."""
FRAGILE_LOSS = 0.15
IDLE_SECONDS = 4.0
BEHIND_MS = (5_000, 3_600_000)
SOURCE = "t"


@dataclass(slots=True)
class Outcome:
    """What became of a schedule."""

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
    """Everything of one schedule."""

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
        self._slow = self.rng.choice([0.002, 0.01, 0.03])
        self._loss = self.rng.choice([0.01, 0.04]) * self.mix.faults.get("lossy", 0)

    @property
    def committed(self) -> Committed | None:
        """The commit of the source partition."""
        return self.group.committed.get(self.log.tp)

    @committed.setter
    def committed(self, committed: Committed | None) -> None:
        self.group.committed = {self.log.tp: committed} if committed else {}

    # ---- chance

    def now(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    def rng_of(self, name: str) -> random.Random:
        """Chance of one actor alone: the order in which a set wakes several at one moment changes nothing."""
        return random.Random(f"{self.app_id}/{name}")

    def latency_seconds(self, rng: random.Random | None = None) -> float:
        """Of half a call."""
        rng = rng or self.rng
        slow = 0.3 if self.is_faulty and rng.random() < 0.02 else self._slow
        return rng.uniform(0.0, slow)

    def has_fault(self, chance: float, rng: random.Random | None = None) -> bool:
        """Whether a fault of this probability happens now."""
        return self.is_faulty and (rng or self.rng).random() < chance

    def has_lost_something(self, call: str, rng: random.Random | None = None) -> bool:
        """Whether a request or a reply is lost now."""
        chance = FRAGILE_LOSS if call in self.mix.fragile else self._loss
        return chance > 0 and self.has_fault(chance, rng)

    def is_snapshot_due(self, has_sealed: bool) -> bool:
        """Whether a copy of Redis is kept, to come back to; with ``rewind`` mostly one in which something waits to be sent."""
        if "rewind" in self.mix.faults:
            return has_sealed and self.has_fault(0.5)
        return "rollback" in self.mix.faults and self.has_fault(0.08)

    def later(self, execute: Callable[[], Any]) -> None:
        """A request arrives when nobody waits for its reply any more."""

        def arrive() -> None:
            with suppress(Exception):
                execute()

        asyncio.get_running_loop().call_later(self.rng.uniform(0.0, 2.0), arrive)

    # ---- what happens

    def report_fault(self, kind: str, what: str) -> None:
        """Notes a violation."""
        if kind in self._tolerated:
            self.count(kind)
            return
        worker = CURRENT.get(None)
        self.violations.append(f"{kind}: {what} (after {self.now():.2f} s, worker {worker.name if worker else '-'})")

    def count(self, name: str) -> None:
        """Notes a fault that happened."""
        self.counts[name] = self.counts.get(name, 0) + 1

    def new_worker(self) -> Worker:
        """Starts a process."""
        worker = Worker(self, f"w{len(self.workers)}")
        self.workers.append(worker)
        return worker

    async def rebalance(self, to: Worker) -> None:
        """The group gives the partition to a member; whoever does not answer is not waited for."""
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
            await asyncio.sleep(0.5)  # virtual time: somebody looks now and then
            worker = self.group.worker
            if worker is None or not worker.is_alive or worker.generation != self.group.generation:
                await asyncio.sleep(self.rng.uniform(0.0, 1.0))  # virtual time: the start of a process
                await self.rebalance(self.new_worker())

    # ---- the schedule

    async def run(self) -> None:
        """Faults, healing, draining, the last checks."""
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
                await self.rebalance(self.new_worker())  # one that knows every fold must notice
            await asyncio.sleep(IDLE_SECONDS)  # virtual time: all is silent
            self.server.roll_back(list(self.folds), self.rng.randint(20, 200))
            return
        # What a script that died half-way sealed may be unknown to its owner; the next claim sends it.
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
                self.report_fault("reset", f"{worker.name} took a batch for a reset of the reader")
            if causes and not self.mix.has_any:
                self.report_fault("resync", f"{worker.name} claimed again without a fault: {causes}")
        if not self.violations:
            self.subject.check_end()

    def _waits_for(self) -> str:
        """Why the system is not quiet yet; empty when it is."""
        committed, end = self.committed, self.log.end
        if (
            committed is None
            or committed.offset < end
            or not set(self.folds) <= marks_in(committed).keys()
            or not self.subject.is_whole()
        ):
            state = {name: self.subject.state(name) for name in self.folds}
            return f"committed {committed}, the log ends at {end}, Redis has {state}"
        return ""


class _KnownLosses(logging.Handler):
    """Reads what the claim of a fold or a subscriber says about lost ranges."""

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith(("known loss", "retention overtook")) and isinstance(record.args, tuple):
            worker = CURRENT.get()
            fold, _, first, last = record.args[:4]
            worker.world.ledger.on_known_loss(str(fold), int(str(first)), int(str(last)), worker.highest_at_claim)


@contextmanager
def _listening(trace: bool) -> Iterator[None]:
    """The product's log, without its output."""
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
    """Runs one schedule to its end or to its first violation.

    Args:
        client: Of a real server; only keys of a name of its own are touched.
        mix: Words, see :class:`Mix`.
        seed: Of everything that is random.
        subject: The processors that are tried.
        tolerated: Kinds of violations that are counted only.
        trace: Print the product's log.
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
