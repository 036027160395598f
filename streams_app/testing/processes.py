"""Simulated processes of a test kit: each runs the worker's code for subscribers, and can be killed or frozen.

Each process has a virtual event loop of its own.
"""

from __future__ import annotations

import asyncio
from asyncio.events import _set_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from streams_app.delivery.producer import Outcomes, OutgoingRecord
from streams_app.delivery.scripts import Scripts
from streams_app.events.codec import decoder_of
from streams_app.events.declaration import Event
from streams_app.events.publishing import Events
from streams_app.local.broker import LocalBroker, MemoryProducer
from streams_app.local.member import CALLED_BY_TIMER, LocalMember
from streams_app.local.process import LocalProcess
from streams_app.settings import Settings
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.execution.async_executor import AsyncExecutor
from streams_app.subscribers.execution.executor import Attempt, Executor
from streams_app.subscribers.execution.subscriber_metrics import attempted
from streams_app.subscribers.execution.thread_executor import call_inline
from streams_app.subscribers.running.agent import OnEnded
from streams_app.testing.results import Run
from streams_app.testing.virtual_time import VirtualLoop, VirtualTime

if TYPE_CHECKING:
    from streams_app.subscribers.declaration.received import Received

R = TypeVar("R")


class VirtualEvents(Events):
    """Publisher that appends events to the in-memory log of a test kit; usable from functions with and without ``async``.

    If ``knows_all``, it rejects events that the catalogue does not declare, as in production.
    """

    def __init__(
        self, settings: Settings, catalogue: Catalogue, producer: MemoryProducer, time: VirtualTime, *, knows_all: bool
    ) -> None:
        super().__init__(settings, catalogue, clock=time)
        self._producer_of_ours = producer
        self._knows_all = knows_all
        self._is_inline = False

    def _new_producer(self) -> MemoryProducer:
        return self._producer_of_ours

    def _new_schemas(self) -> None:
        """Use no schema registry, so that values are plain JSON."""

    def _faults(self, event: Event[Any, Any], metadata: Any, context: Mapping[str, str], event_id: Any) -> list[str]:
        if not self._knows_all:
            self._events.setdefault(event.key, event)
            self._decoders.setdefault(event.key, decoder_of(event, self._settings.limits))
        return super()._faults(event, metadata, context, event_id)

    def call_inline(self, function: Callable[[Any], Any], event: Any) -> None:
        """Call a function that is not ``async``. The function finds no running event loop, as in a thread."""
        loop = asyncio.get_running_loop()
        self._is_inline = True
        _set_running_loop(None)
        try:
            call_inline(function, event)
        finally:
            _set_running_loop(loop)
            self._is_inline = False

    def _waited_for(self, publish: Callable[[], Coroutine[Any, Any, str]]) -> str:
        if not self._is_inline:
            # Called by an ``async`` function: the base class raises an error, as in a worker.
            return super()._waited_for(publish)
        work = publish()
        _set_running_loop(self._loop)
        try:
            # The log is in memory, so the coroutine ends without waiting.
            work.send(None)
        except StopIteration as ended:
            return str(ended.value)
        finally:
            _set_running_loop(None)
            work.close()
        raise RuntimeError("the process of this function was killed")


class DyingProducer(MemoryProducer):
    """Producer that sends nothing after its process was killed."""

    def __init__(self, broker: LocalBroker, process: Process) -> None:
        super().__init__(broker)
        self._process = process

    async def send(self, records: Sequence[OutgoingRecord]) -> Outcomes:
        """Append nothing and never return if the process was killed."""
        await self._process.living()
        return await super().send(records)


class Process:
    """Simulated process that runs the subscribers of a worker.

    Attributes:
        is_frozen: Whether the process is stopped for a time, as by SIGSTOP.
        interruptions: Number of times the process was killed or frozen.
        starting: Task that starts the process and takes over the consumer groups.
        runs: Attempts of all processes of the kit, by the name of the subscriber.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        catalogue: Catalogue,
        subscriptions: Sequence[Subscription],
        *,
        broker: LocalBroker,
        scripts: Scripts,
        time: VirtualTime,
        knows_all: bool,
        runs: Mapping[str, list[Run]],
        dies: Callable[[str, str, Process], bool],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Start a simulated process.

        Args:
            dies: Function that returns whether an attempt kills its process; if so, the attempt does not continue. It is called
                when an attempt has begun, and when the function of the subscriber has returned. Its arguments are ``begun`` or
                ``done``, the name of the subscriber, and this process.
            on_fatal: Called with unexpected errors.
        """
        self.is_alive, self.is_frozen = True, False
        self.interruptions = 0
        self.runs = runs
        self._name = name
        self._dies = dies
        self._time = time
        self._running: dict[Any, Run] = {}
        self._outside: set[asyncio.Task[Any]] = set()
        self.loop = VirtualLoop(time, lambda: self.is_busy)
        producer = DyingProducer(broker, self)
        self.events = VirtualEvents(settings, catalogue, producer, time, knows_all=knows_all)

        async def start() -> None:
            self._local = LocalProcess(
                name, settings, subscriptions, broker=broker, scripts=scripts, producer=producer, events=self.events, clock=time,
                slots=self._slots, users=self.loop, lifespan=catalogue.lifespan, on_fatal=self._failed,
            )  # fmt: skip
            await self._local.start()

        self._on_fatal = on_fatal
        self.starting = self.loop.create_task(start())
        self.starting.add_done_callback(self._started)

    @property
    def is_busy(self) -> bool:
        """Whether a function, or a coroutine that :meth:`run_outside_attempts` has started, is running."""
        return bool(self._running or self._outside)

    @property
    def can_run(self) -> bool:
        return self.is_alive and not self.is_frozen

    def stop(self) -> asyncio.Task[None]:
        """Start a task that releases all partitions, as on SIGTERM or when another member takes over."""
        return self.loop.create_task(self._local.stop())

    def run_outside_attempts(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Start a coroutine on the loop of the process, outside any attempt."""
        task = self.loop.create_task(work)
        self._outside.add(task)
        task.add_done_callback(self._outside.discard)
        return task

    def kill(self) -> None:
        """Stop the process as by SIGKILL; running attempts get the outcome ``crash``."""
        self.is_alive = False
        self._local.forget()
        for run in self._running.values():
            run.outcome = "crash"
        self._running.clear()
        self.loop.stop()

    async def living(self) -> None:
        """Return at once if the process is alive; wait forever if it was killed."""
        if not self.is_alive:
            await self.loop.create_future()

    def _started(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(error)

    def _failed(self, member: LocalMember, error: BaseException) -> None:
        self._on_fatal(error)

    def _slots(self, one: Subscription, on_ended: OnEnded) -> Executor:
        declared = one.subscriber
        function: Callable[[Any], Awaitable[None] | None] = declared.function

        async def call(event: Received[Any, Any]) -> None:
            CALLED_BY_TIMER.set(False)
            run = self._running[event] = Run(event.attempt, "running", event.id, event.data)
            self.runs[declared.name].append(run)
            await self._passed("begun", declared.name)
            if declared.is_async:
                await function(event)  # type: ignore[misc]  # it is awaited, as it is async
            else:
                self.events.call_inline(function, event)
            await self._passed("done", declared.name)

        def ended(calls: list[Attempt]) -> None:
            if not self.is_alive:
                # Attempts end when the kit closes the loop of a killed process; a real process would report no outcome.
                return
            for one_call in calls:
                self._record(one_call)
            on_ended(calls)

        # The timer of its sweep counts as one of the worker: it finds no time-outs while no attempt runs.
        token = CALLED_BY_TIMER.set(True)
        try:
            return AsyncExecutor(self.loop, call, declared.concurrency, declared.timeout_ms, self._time, ended)
        finally:
            CALLED_BY_TIMER.reset(token)

    async def _passed(self, where: str, subscriber: str) -> None:
        if self._dies(where, subscriber, self):
            await self.loop.create_future()

    def _record(self, call: Attempt) -> None:
        run = self._running.pop(call.event, None)
        if run is not None:
            run.outcome = attempted(call) or "interrupted"
            run.error = call.error
