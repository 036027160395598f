"""The workers of a test kit, one after the other: they are started, killed, frozen and take over from each other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from streams_app.delivery.batch import TP
from streams_app.local.broker import LocalBroker, MemoryProducer
from streams_app.local.scripts import MemoryScripts
from streams_app.settings import Settings
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.testing.processes import Process, VirtualEvents
from streams_app.testing.seen import Run
from streams_app.testing.stage import Stage
from streams_app.testing.virtual_time import VirtualLoop, VirtualTime

R = TypeVar("R")

LONGEST_SECONDS: Final = 600.0
"""What takes longer than this, by the virtual clock, never ends."""

DYING_SECONDS: Final = 0.1
"""So long an attempt has begun, or ended, when it kills its process: Redis has been told of it, as it is now and then."""


class Workers:
    """The application under test: its log, what Redis keeps of it, and its processes.

    Attributes:
        time: How late it is.
        broker: Has the log and the groups.
        scripts: In the place of Redis.
        stage: Steps everything.
        events: Publishes from outside.
        runs: Attempts by the name of their subscriber.
    """

    def __init__(
        self, settings: Settings, catalogue: Catalogue, subscriptions: Sequence[Subscription], start_ms: int, *, knows_all: bool
    ) -> None:
        """Starts nothing yet.

        Args:
            settings: Of the kit.
            catalogue: Of the application.
            subscriptions: What is called.
            start_ms: How late it is.
            knows_all: Whether an event that the catalogue does not name is refused, as in production.
        """
        self.time = VirtualTime(start_ms)
        self.broker = LocalBroker(self.time)
        self.scripts = MemoryScripts(self.time.now_ms)
        self.events = VirtualEvents(settings, catalogue, MemoryProducer(self.broker), self.time, knows_all=knows_all)
        self.runs: defaultdict[str, list[Run]] = defaultdict(list)
        self._crash_at: tuple[str, str | None] | None = None
        self._settings = settings
        self._catalogue = catalogue
        self._subscriptions = subscriptions
        self._knows_all = knows_all
        self._processes: list[Process] = []
        self._errors: list[BaseException] = []
        self._dies_at: float | None = None
        self._opened: tuple[VirtualLoop, Stage] | None = None

    @property
    def outside(self) -> VirtualLoop:
        """The loop of whoever publishes from outside; raises as :attr:`stage`."""
        return self._within()[0]

    @property
    def stage(self) -> Stage:
        """What moves with the virtual clock.

        Raises:
            RuntimeError: It is not open.
        """
        return self._within()[1]

    @property
    def owner(self) -> Process:
        """The process that has the groups, or had them when it was killed or frozen."""
        return self._processes[-1]

    def open(self) -> None:
        """Starts the first process."""
        outside = VirtualLoop(self.time)
        self._opened = outside, Stage(self.time, [outside], self._is_quiet)
        try:
            self.wait_for(self.outside.create_task(self._publishing()))
            self.wait_for(self._start())
        except BaseException:  # whatever it is, nobody else closes the loops
            self._end_loops()
            raise

    def close(self) -> None:
        """Ends all processes."""
        try:
            if self.owner.is_alive:
                self.owner.is_frozen = False
                self._stop(self.owner)
        finally:
            self._end_loops()

    # ---- time

    def settle(self) -> None:
        """Runs what can run without time going on.

        Raises:
            BaseException: What the product has found that nobody expects.
        """
        self.stage.settle()
        if self._dies_at is not None:
            self.stage.run_until(self._dies_at)
        self._raise_errors()

    def advance(self, seconds: float) -> None:
        """Lets time pass; raises as :meth:`settle`."""
        self.stage.run_until(self.time.seconds + seconds)
        self._raise_errors()

    def wait_for(self, task: asyncio.Task[R]) -> R:
        """Runs until a task has ended, with as much time as that takes; raises what it raises."""
        self._run_until(task.done, task.get_name())
        self._errors[:] = [error for error in self._errors if task.cancelled() or error is not task.exception()]
        result = task.result()
        self.settle()
        return result

    def apart(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs what is no attempt on the loop of the process, with as much time as that takes; raises what it raises.

        Where the process was killed, that is the one which takes over.
        """
        if not self.owner.can_run:
            self._run_until(lambda: self.owner.can_run, "the session of a process that was killed")
            self.wait_for(self.owner.starting)
        return self.wait_for(self.owner.apart(work))

    # ---- processes

    def crash(self, at: str, subscriber: str | None) -> None:
        """As SIGKILL, now or at a moment of the next attempt of a subscriber, or of any."""
        if at == "now":
            self._kill(self.owner)
            self.settle()
        elif at in ("begun", "done"):
            self._crash_at = (at, subscriber)
        else:
            raise ValueError(f"at = {at!r} must be 'now', 'begun' or 'done'")

    def hand_over(self) -> None:
        """Another process has the groups, once the former one has let go of them."""
        if self.owner.can_run:
            self._stop(self.owner)
        self.wait_for(self._start())

    def freeze(self, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT after so long."""
        frozen = self.owner
        frozen.is_frozen = True
        self._take_over_later(frozen)
        self.advance(seconds)
        frozen.is_frozen = False
        self.settle()
        if frozen is not self.owner and frozen.is_alive:
            # By its next heartbeat it learns that its group has gone on without it.
            frozen.stop()
            self.settle()

    def _start(self) -> asyncio.Task[None]:
        """Starts a process, which takes the groups from whoever had them."""
        process = Process(
            f"p{len(self._processes)}", self._settings, self._catalogue, self._subscriptions, broker=self.broker,
            scripts=self.scripts, time=self.time, knows_all=self._knows_all, runs=self.runs, dies=self._dies,
            on_fatal=self._errors.append,
        )  # fmt: skip
        self._processes.append(process)
        self.stage.add_process(process)
        return process.starting

    def _stop(self, process: Process) -> None:
        """Has a process let go of everything; an attempt that ends meanwhile may kill it, and then nobody waits for it any more."""
        stopping = process.stop()
        self._run_until(lambda: stopping.done() or not process.is_alive, stopping.get_name())
        if process.is_alive:
            self.wait_for(stopping)
        self.settle()

    def _dies(self, where: str, subscriber: str, process: Process) -> bool:
        """Whether an attempt goes no further, as it kills its process."""
        if self._crash_at is None or where != self._crash_at[0] or self._crash_at[1] not in (None, subscriber):
            return False
        self._crash_at = None
        self._dies_at = self.time.seconds + DYING_SECONDS
        self.stage.at(self._dies_at, lambda: self._kill(process))
        return True

    def _kill(self, process: Process) -> None:
        self._dies_at = None
        process.kill()
        self._take_over_later(process)

    def _take_over_later(self, former: Process) -> None:
        """Another process has the groups after a session time-out in which the former one was dead or frozen without a break."""
        former.silences += 1
        silence = former.silences

        def take_over() -> None:
            if former is self.owner and not former.can_run and former.silences == silence:
                self._start()

        self.stage.at(self.time.seconds + self._settings.kafka.session_timeout_ms / 1000, take_over)

    def _is_quiet(self) -> bool:
        """Whether every event is finished, by what is committed."""
        return all(
            (held := self.broker.groups[one.group].committed.get(TP(one.topic, 0))) is not None
            and held.offset == self.broker.end(one.topic)
            for one in self._subscriptions
        )

    def _run_until(self, is_done: Callable[[], bool], name: str) -> None:
        self.stage.run_until(self.time.seconds + LONGEST_SECONDS, is_done)
        if not is_done():
            raise TimeoutError(f"{name} has not ended within {LONGEST_SECONDS:g} s of the virtual clock")

    async def _publishing(self) -> Any:
        return await self.events.__aenter__()

    def _end_loops(self) -> None:
        for process in self._processes:
            process.loop.end()
        self.outside.end()
        self._opened = None

    def _within(self) -> tuple[VirtualLoop, Stage]:
        if self._opened is None:
            raise RuntimeError("a kit runs within its block alone: `with SubscriberTester(…) as kit:`")
        return self._opened

    def _raise_errors(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
