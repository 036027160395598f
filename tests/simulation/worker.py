"""A simulated worker process: the real ``Ownership`` and all below it, with simulated connections.

It may be killed or frozen at any time; a request that it has sent may or may not arrive.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from redis.exceptions import ConnectionError as RedisConnectionError

from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.group_consumer import InDoubtError
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.delivery.skew import SkewWatch
from streams_app.errors import TryAgainError
from streams_app.health.status import Status
from streams_app.local.group import NO_GENERATION
from tests.helpers.virtual_loop import LoopClock
from tests.simulation.kafka import Reader
from tests.simulation.redis import Link

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")

CURRENT: contextvars.ContextVar[Worker] = contextvars.ContextVar("CURRENT")
"""The worker whose task is running."""

WRONG_MS = (0, 0, 600_000, -600_000)
"""Errors of the wall clock of a worker, if clocks differ."""

SESSION_MS = 10_000
SKEW_SECONDS = 5.0
TICK_SECONDS = 0.2
COMMIT_SECONDS = 0.4
REVOKE_SECONDS = 6.0


class WrongClock(LoopClock):
    """The clocks of another machine."""

    def __init__(self, wrong_ms: int) -> None:
        self.wrong_ms = wrong_ms

    def now_ms(self) -> int:
        """Return the wall clock, which an operator may have set."""
        return super().now_ms() + self.wrong_ms


class Worker:
    """One process.

    Attributes:
        generation: Generation of the consumer group, as this process knows it.
        is_assigned: Whether the partition is assigned to this process, as it knows it.
        causes: Causes of its repeated claims.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.generation = NO_GENERATION
        self.is_assigned = False
        self.is_alive = True
        self.is_rejoining = False
        self.claim_began_at = 0.0
        self.end_at_claim = 0
        self.highest_at_claim: dict[str, int] = {}
        self._parked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._context = contextvars.copy_context()
        self._context.run(CURRENT.set, self)
        self.reader = Reader(self, world.group, world.log)
        has_own_clock = "clocks" in world.mix.faults
        clock = WrongClock(world.rng.choice(WRONG_MS) if has_own_clock and world.is_faulty else 0)
        self.clock = clock
        self.trusted, self.status = TrustedClock(clock), Status()
        self.causes: set[str] = set()
        self.skew = SkewWatch(self.trusted, self.status, Link(self, world.server).time)
        config = OwnershipConfig(
            self.trusted, self.status, self._on_fatal, lambda _, cause: self.causes.add(cause), SESSION_MS, TICK_SECONDS,
            release_seconds=world.subject.release_seconds, reclaim_seconds=world.subject.reclaim_seconds,
            on_doubt=self._on_doubt if world.subject.is_exact else None,
        )  # fmt: skip
        self.ownership = Ownership(self.reader, world.subject.processors(self), config)
        for loop in (self._fetch_forever, self._deliver_forever, self._tick_forever, self._commit_forever):
            self.spawn(loop())
        if has_own_clock:
            self.spawn(self._compare_forever())

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this process."""
        task = asyncio.get_running_loop().create_task(work, context=self._context)
        self._tasks.append(task)
        return task

    # ---- start and end

    @property
    def is_frozen(self) -> bool:
        """Whether the process is suspended, as by SIGSTOP."""
        return not self._thawed.is_set()

    @property
    def is_responsive(self) -> bool:
        """Whether the process is neither dead nor frozen."""
        return self.is_alive and not self.is_frozen

    @property
    def claim(self) -> tuple[str, float]:
        """The current or latest claim of the process."""
        return self.name, self.claim_began_at

    def check_claim(self, began_at: float) -> None:
        """Check that a member whose generation ended before its claim began does not write to Redis."""
        group = self.world.group
        if self.generation != group.generation and group.bumped_at < began_at:
            self.world.report_fault("robbed", f"{self.name} of generation {self.generation} claims from {group.generation}")

    def kill(self) -> None:
        """SIGKILL."""
        self.is_alive = False

    def freeze(self) -> None:
        """SIGSTOP."""
        self._thawed.clear()

    def thaw(self) -> None:
        """SIGCONT."""
        self._thawed.set()

    def _on_fatal(self, error: BaseException) -> None:
        if not isinstance(error, TryAgainError):
            self.world.report_fault("crash", repr(error))
        self.is_alive = False

    def _on_doubt(self, error: InDoubtError) -> None:
        if not self.is_rejoining:
            self.is_rejoining = True
            self.world.count("in doubt")
            # The group decides this.
            self._tasks.append(asyncio.get_running_loop().create_task(self._join_anew(), context=contextvars.Context()))

    async def _join_anew(self) -> None:
        """Leave the group and join it as another member."""
        if self.world.group.worker is self and self.generation == self.world.group.generation:
            await self.world.rebalance(self)
        self.is_rejoining = False

    async def running(self) -> None:
        """Return when the process runs; never if it is dead."""
        while not self.is_responsive:
            if not self.is_alive:
                await asyncio.shield(self._parked)  # a waiting task stays until the end of the schedule, unless it is cancelled
            await self._thawed.wait()

    async def pause(self) -> None:
        """Wait a short virtual time in this process."""
        await asyncio.sleep(self.world.latency_seconds())  # virtual time
        await self.running()

    async def call(self, execute: Callable[[], T], error: type[Exception], *, name: str = "", may_be_late: bool = False) -> T:
        """Send a request to a server and return its reply.

        Args:
            execute: Executes the request on the server, at once.
            error: Raised if the request or the reply is lost.
            name: Name of the call, some of which are lost more often.
            may_be_late: Whether the server may execute the request after the caller has given up.
        """
        world = self.world
        await self.pause()
        try:
            await asyncio.sleep(world.latency_seconds())  # virtual time: the network latency
        except asyncio.CancelledError:
            if may_be_late and world.rng.random() < 0.5:
                world.later(execute)
            raise
        if not self.is_alive and world.rng.random() < 0.5:
            await self.running()
        if world.loses_message(name):
            if may_be_late and world.rng.random() < 0.4:
                world.later(execute)
            raise error("the request was lost")
        failure: Exception | None = None
        result: T | None = None
        try:
            result = execute()
        except Exception as raised:  # it is part of the reply
            failure = raised
        await self.pause()
        if world.loses_message(name):
            raise error("the reply was lost")
        if failure is not None:
            raise failure
        return cast("T", result)

    # ---- membership

    async def compare_clocks(self) -> None:
        """Compare the clocks before joining, as the application does; without an answer of Redis, the process ends."""
        try:
            async with asyncio.timeout(REVOKE_SECONDS):
                await self.spawn(self.skew.check_once())
        except (RedisConnectionError, TimeoutError):
            self.kill()

    def join(self, generation: int) -> None:
        """Handle the assignment of the partition to this member."""
        self.generation = generation
        self.is_assigned = True
        self.reader.begin()
        self._context.run(self.ownership.assigned, generation)

    async def leave(self) -> None:
        """Handle the revocation of the partition, or its late detection by this member."""
        if self.is_assigned:
            generation = self.generation
            with suppress(TimeoutError):
                async with asyncio.timeout(self.world.subject.release_seconds + 2.0):
                    await self.spawn(self.ownership.revoked([self.world.log.tp]))
            if generation == self.generation:  # it may have joined again meanwhile
                self.is_assigned = False

    # ---- background tasks of the application and the client

    async def _fetch_forever(self) -> None:
        while True:
            await asyncio.sleep(self.world.rng.uniform(0.02, 0.15))  # virtual time: a fetch
            await self.running()
            most = 30 if "history" in self.world.mix.faults else 8
            self.reader.fetch(self.world.rng.randint(1, most), self.clock.now_ms())

    async def _deliver_forever(self) -> None:
        while True:
            await asyncio.sleep(self.world.rng.uniform(0.01, 0.1))  # virtual time: an iteration of the main loop
            await self.running()
            if self.reader.fetched:
                batch = self.reader.fetched.popleft()
                if not ("drops" in self.world.mix.faults and self.world.has_fault(0.03 * self.world.mix.faults["drops"])):
                    self.ownership.deliver(batch)

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)  # virtual time: a timer
            await self.running()
            self.ownership.tick_once()

    async def _compare_forever(self) -> None:
        """Compare the clocks every few seconds; sometimes the clock of this machine is set in between."""
        while True:
            await asyncio.sleep(self.world.rng.uniform(0.0, SKEW_SECONDS))  # virtual time
            await self.running()
            if self.world.has_fault(0.2):
                self.world.count("clocks")
                self.clock.wrong_ms = self.world.rng.choice(WRONG_MS)
            await asyncio.sleep(self.world.rng.uniform(0.0, SKEW_SECONDS))  # virtual time
            await self.running()
            with suppress(RedisConnectionError):
                await self.skew.check_once()

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_SECONDS)  # virtual time: a timer
            await self.running()
            await self.ownership.commit_once()
