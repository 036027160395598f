"""The processes of a test kit: each a worker's code for subscribers on a virtual loop, to be killed, frozen and taken over."""

from __future__ import annotations

import asyncio
from asyncio.events import _set_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from streams_app.delivery.producer import Outcomes, Outgoing
from streams_app.events.codec import decoder_of
from streams_app.events.declaration import Event
from streams_app.events.publishing import Events
from streams_app.local.broker import LocalBroker, MemoryProducer
from streams_app.local.member import IN_TIMER, LocalMember
from streams_app.local.process import LocalProcess
from streams_app.settings import Settings
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.execution.async_executor import AsyncExecutor
from streams_app.subscribers.execution.executor import Attempt, Executor
from streams_app.subscribers.execution.subscriber_metrics import attempted
from streams_app.subscribers.execution.thread_executor import call_inline
from streams_app.subscribers.running.agent import OnEnded
from streams_app.subscribers.state.store import Scripts
from streams_app.testing.seen import Run
from streams_app.testing.virtual_time import VirtualLoop, VirtualTime

if TYPE_CHECKING:
    from streams_app.subscribers.declaration.received import Received

R = TypeVar("R")


class VirtualEvents(Events):
    """Publishes into the log of a kit, from functions with and without ``async`` alike."""

    def __init__(
        self, settings: Settings, catalogue: Catalogue, producer: MemoryProducer, time: VirtualTime, *, knows_all: bool
    ) -> None:
        """Connects nothing.

        Args:
            settings: Of the kit.
            catalogue: The events that may be published.
            producer: Appends to the log.
            time: Times events.
            knows_all: Whether an event that the catalogue does not name is refused, as in production.
        """
        super().__init__(settings, catalogue, clock=time)
        self._producer_of_ours = producer
        self._knows_all = knows_all
        self._is_inline = False

    def _new_producer(self) -> MemoryProducer:
        return self._producer_of_ours

    def _faults(self, event: Event[Any, Any], metadata: Any, context: Mapping[str, str], event_id: Any) -> list[str]:
        if not self._knows_all:
            self._events.setdefault(event.key, event)
            self._decoders.setdefault(event.key, decoder_of(event, self._settings.limits))
        return super()._faults(event, metadata, context, event_id)

    def call_inline(self, function: Callable[[Any], Any], event: Any) -> None:
        """Calls a function that is not ``async``, which finds no running loop, as in a thread.

        Raises:
            TypeError: It returned what nobody awaits.
        """
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
            # Such as in a function that is ``async``: refused, as in a worker.
            return super()._waited_for(publish)
        work = publish()
        _set_running_loop(self._loop)
        try:
            # The log is in memory: nothing is waited for.
            work.send(None)
        except StopIteration as ended:
            return str(ended.value)
        finally:
            _set_running_loop(None)
            work.close()
        raise RuntimeError("the process of this function was killed")


class DyingProducer(MemoryProducer):
    """A producer that sends nothing once its process is dead."""

    def __init__(self, broker: LocalBroker, process: Process) -> None:
        """Belongs to a process."""
        super().__init__(broker)
        self._process = process

    async def send(self, records: Sequence[Outgoing]) -> Outcomes:
        """See :class:`MemoryProducer`."""
        await self._process.living()
        return await super().send(records)


class Process:
    """One process.

    Attributes:
        is_alive: Whether it was not killed.
        is_frozen: Whether it stands still.
        silences: How often it was killed or frozen.
        loop: Its event loop.
        events: Publishes what functions want published.
        runs: Attempts by the name of their subscriber; of all processes together.
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
        """Starts it.

        Args:
            name: Tells it from others.
            settings: Of the kit.
            catalogue: Its lifespan is entered.
            subscriptions: What is called.
            broker: Has the log and the groups.
            scripts: In the place of Redis.
            time: Of the kit.
            knows_all: See :class:`VirtualEvents`.
            runs: Where attempts are noted.
            dies: Called with where an attempt is, ``begun`` or ``done``, its subscriber and this process; returns whether it kills
                the process and goes no further.
            on_fatal: Called with errors that nobody expects.
        """
        self.is_alive, self.is_frozen = True, False
        self.silences = 0
        self.runs = runs
        self._name = name
        self._dies = dies
        self._time = time
        self._running: dict[Any, Run] = {}
        self._beside: set[asyncio.Task[Any]] = set()
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
        """Whether a function runs."""
        return bool(self._running or self._beside)

    @property
    def can_run(self) -> bool:
        """Whether it is neither dead nor frozen."""
        return self.is_alive and not self.is_frozen

    def stop(self) -> asyncio.Task[None]:
        """Lets go of everything, as on SIGTERM or where another member takes over."""
        return self.loop.create_task(self._local.stop())

    def apart(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Runs something beside the attempts."""
        task = self.loop.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    def kill(self) -> None:
        """Nothing of it goes on, as after SIGKILL; what ran is a crash."""
        self.is_alive = False
        self._local.forget()
        for run in self._running.values():
            run.outcome = "crash"
        self._running.clear()
        self.loop.stop()

    async def living(self) -> None:
        """Returns while the process is alive, else never."""
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
            IN_TIMER.set(False)
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
                # Its loop is closed with the kit, and what that ends is no outcome: a process that was killed says nothing.
                return
            for one_call in calls:
                self._note(one_call)
            on_ended(calls)

        # Its sweep for time-outs finds nothing while no attempt runs, as the timers of members.
        token = IN_TIMER.set(True)
        try:
            return AsyncExecutor(self.loop, call, declared.concurrency, declared.timeout_ms, self._time, ended)
        finally:
            IN_TIMER.reset(token)

    async def _passed(self, where: str, subscriber: str) -> None:
        if self._dies(where, subscriber, self):
            await self.loop.create_future()

    def _note(self, call: Attempt) -> None:
        run = self._running.pop(call.event, None)
        if run is not None:
            run.outcome = attempted(call) or "interrupted"
            run.error = call.error
