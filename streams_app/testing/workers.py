"""Simulated worker processes of a test kit: each may be killed or frozen, and the next one takes over its consumer groups."""

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
from streams_app.testing.results import Run
from streams_app.testing.stage import Stage
from streams_app.testing.virtual_time import VirtualLoop, VirtualTime

R = TypeVar("R")

LONGEST_SECONDS: Final = 600.0
"""Maximum duration of a wait, by the virtual clock; a longer one fails with a ``TimeoutError``."""

DYING_SECONDS: Final = 0.1
"""Time from the beginning or end of an attempt to the simulated crash that it causes.

In this time, the state in Redis is updated, as may also happen before a real crash.
"""


class Workers:
    """Application under test: its log, its state in Redis, and its processes.

    Attributes:
        events: Publishes like a producer outside the application.
        runs: Attempts of each subscriber, by the name of the subscriber.
    """

    def __init__(
        self, settings: Settings, catalogue: Catalogue, subscriptions: Sequence[Subscription], start_ms: int, *, knows_all: bool
    ) -> None:
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
        """Event loop of :attr:`events`."""
        return self._within()[0]

    @property
    def stage(self) -> Stage:
        """Scheduler that runs all simulated processes, and the test kits of connected folds, by the virtual clock."""
        return self._within()[1]

    @property
    def owner(self) -> Process:
        """The process that owns the consumer groups, or the last owner if it was killed or frozen."""
        return self._processes[-1]

    def open(self) -> None:
        """Start the producer outside the application, then the first process; return when it owns the consumer groups."""
        outside = VirtualLoop(self.time)
        self._opened = outside, Stage(self.time, [outside], self._is_quiet)
        try:
            self.wait_for(self.outside.create_task(self._publishing()))
            self.wait_for(self._start())
        except BaseException:  # after any error, because no other code closes the loops
            self._end_loops()
            raise

    def close(self) -> None:
        """Stop the owner gracefully, unless it was killed, then close all event loops; a frozen owner is continued first."""
        try:
            if self.owner.is_alive:
                self.owner.is_frozen = False
                self._stop(self.owner)
        finally:
            self._end_loops()

    # ---- time

    def settle(self) -> None:
        """Run all callbacks that can run at the current virtual time; raise unexpected errors of the code of the worker.

        If one of them reaches the point at which :meth:`crash` kills the process, the clock is also advanced to the crash.
        """
        self.stage.settle()
        if self._dies_at is not None:
            self.stage.run_until(self._dies_at)
        self._raise_errors()

    def advance(self, seconds: float) -> None:
        """Advance the virtual clock, and run everything that becomes due; raise unexpected errors of the code of the worker."""
        self.stage.run_until(self.time.seconds + seconds)
        self._raise_errors()

    def wait_for(self, task: asyncio.Task[R]) -> R:
        """Advance the virtual clock until a task has ended, at most :data:`LONGEST_SECONDS`; return or raise its outcome."""
        self._run_until(task.done, task.get_name())
        self._errors[:] = [error for error in self._errors if task.cancelled() or error is not task.exception()]
        result = task.result()
        self.settle()
        return result

    def run_outside_attempts(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the loop of the owner, outside any attempt; advance the clock until it has ended, return its result.

        If the owner was killed or frozen, the process that takes over runs the coroutine.
        """
        if not self.owner.can_run:
            self._run_until(lambda: self.owner.can_run, "the session of a process that was killed")
            self.wait_for(self.owner.starting)
        return self.wait_for(self.owner.run_outside_attempts(work))

    # ---- processes

    def crash(self, at: str, subscriber: str | None) -> None:
        """Kill the owner like SIGKILL, as :meth:`.SubscriberTester.crash` does."""
        if at == "now":
            self._kill(self.owner)
            self.settle()
        elif at in ("begun", "done"):
            self._crash_at = (at, subscriber)
        else:
            raise ValueError(f"at = {at!r} must be 'now', 'begun' or 'done'")

    def hand_over(self) -> None:
        """Let the owner release its partitions unless it was killed or frozen, and start another process as the owner."""
        if self.owner.can_run:
            self._stop(self.owner)
        self.wait_for(self._start())

    def freeze(self, seconds: float) -> None:
        """Stop the owner like SIGSTOP, and continue it like SIGCONT after ``seconds``.

        If another process has taken over in the meantime, the continued process releases its partitions and ends.
        """
        frozen = self.owner
        frozen.is_frozen = True
        self._take_over_later(frozen)
        self.advance(seconds)
        frozen.is_frozen = False
        self.settle()
        if frozen is not self.owner and frozen.is_alive:
            # Its next heartbeat is rejected, because another process has taken over its groups.
            frozen.stop()
            self.settle()

    def _start(self) -> asyncio.Task[None]:
        process = Process(
            f"p{len(self._processes)}", self._settings, self._catalogue, self._subscriptions, broker=self.broker,
            scripts=self.scripts, time=self.time, knows_all=self._knows_all, runs=self.runs, dies=self._dies,
            on_fatal=self._errors.append,
        )  # fmt: skip
        self._processes.append(process)
        self.stage.add_process(process)
        return process.starting

    def _stop(self, process: Process) -> None:
        """Release all partitions of a process; stop waiting if an attempt kills the process in the meantime."""
        stopping = process.stop()
        self._run_until(lambda: stopping.done() or not process.is_alive, stopping.get_name())
        if process.is_alive:
            self.wait_for(stopping)
        self.settle()

    def _dies(self, where: str, subscriber: str, process: Process) -> bool:
        """Return whether an attempt kills its process at this point, as :meth:`crash` has requested.

        If so, schedule the crash; the caller must not continue the attempt.
        """
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
        """Move the groups to another process after a session timeout, unless ``former`` runs again by then."""
        former.interruptions += 1
        interruption = former.interruptions

        def take_over() -> None:
            if former is self.owner and not former.can_run and former.interruptions == interruption:
                self._start()

        self.stage.at(self.time.seconds + self._settings.kafka.session_timeout_ms / 1000, take_over)

    def _is_quiet(self) -> bool:
        """Return whether every event is finished, according to the committed offsets."""
        return all(
            (commit := self.broker.groups[one.group].committed.get(TP(one.topic, 0))) is not None
            and commit.offset == self.broker.end(one.topic)
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
            raise RuntimeError("a kit runs only within its block: `with SubscriberTester(…) as kit:`")
        return self._opened

    def _raise_errors(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
