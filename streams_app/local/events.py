"""Events for development: publishing and subscribers in one process, on the wall clock, without Kafka and Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from streams_app.clock import Clock, SystemClock
from streams_app.events.own_loop import OwnLoop
from streams_app.events.publishing import Events
from streams_app.local.broker import LocalBroker, MemoryProducer
from streams_app.local.member import LocalMember
from streams_app.local.process import LocalProcess
from streams_app.local.scripts import MemoryScripts
from streams_app.local.settings import settings_of
from streams_app.settings import Settings
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.subscription import Subscription, subscriptions_of
from streams_app.subscribers.execution.async_executor import AsyncExecutor, UserLoop
from streams_app.subscribers.execution.executor import Executor, call_forget
from streams_app.subscribers.execution.thread_executor import ThreadExecutor
from streams_app.subscribers.execution.traced import traced
from streams_app.subscribers.running.agent import OnEnded, last_release_seconds
from streams_app.tracing import tracing_of

logger = logging.getLogger(__name__)

APP_ID: Final = "local"
USER_LOOP_STOP_SECONDS: Final = 2.0
REASSIGN_SECONDS: Final = 1.0


class LocalEvents(Events):
    """Publishes as :class:`streams_app.Events` does, and calls the subscribers of the catalogue in this process.

    Each subscriber receives all events of its topic, with retries, timeouts, order and dead letters as in production. Dead letters
    are also logged. All state is in memory and lost with the process. Events are not folded, so subscribers to the records of a
    fold are never called.
    """

    def __init__(self, catalogue: Catalogue, settings: Settings | None = None, *, clock: Clock | None = None) -> None:
        """Create a publisher for the events of a catalogue, without starting the subscribers.

        Args:
            catalogue: The declared events and subscribers.
            settings: Limits and overrides of subscribers; None: the defaults.
            clock: Clock for the times of events; None: the clock of this machine.

        Raises:
            ConfigurationError: The catalogue does not match the settings.
        """
        self._chosen = settings or settings_of(APP_ID, catalogue)
        self._time = clock or SystemClock()
        super().__init__(self._chosen, catalogue, clock=self._time)
        self._catalogue = catalogue
        self._subscriptions = [one for one in subscriptions_of(catalogue, self._chosen) if one.subscriber.is_enabled]
        self._broker = LocalBroker(self._time)
        self._worker: _Worker | None = None

    async def __aenter__(self) -> Self:
        """Start the subscribers, in separate threads.

        Raises:
            RuntimeError: This object has already been entered.
        """
        await super().__aenter__()
        logger.warning("events are kept in memory and lost with this process: LocalEvents is for development")
        self._worker = _Worker(self._chosen, self._catalogue, self._subscriptions, self._broker, self._time)
        try:
            await self._worker.start()
        except BaseException:  # also when cancelled: no other code would stop the started worker
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop the subscribers. Running attempts have ``worker.grace`` to end; events that are not finished are lost."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()
        await super().__aexit__(kind, error, trace)

    async def forget(self, key: str) -> None:
        """Call the functions ``forget`` of the subscribers with a key, as ``streams-app forget`` does.

        Raises:
            RuntimeError: This object is not entered.
        """
        if self._worker is None:
            raise RuntimeError("functions are called only within `async with LocalEvents(...)`")
        await self._worker.forget(key)

    def _new_producer(self) -> MemoryProducer:
        return MemoryProducer(self._broker)

    def _new_schemas(self) -> None:
        """Use no schema registry, because values are plain JSON."""


class _LogPublisher(Events):
    """Publisher that functions of subscribers use; it appends to the log in memory."""

    def __init__(self, settings: Settings, catalogue: Catalogue, broker: LocalBroker, clock: Clock) -> None:
        super().__init__(settings, catalogue, clock=clock)
        self._broker = broker

    def _new_producer(self) -> MemoryProducer:
        return MemoryProducer(self._broker)

    def _new_schemas(self) -> None: ...


class _Worker:
    """Runs the subscribers of a catalogue on a separate event loop, so that they and the application do not block each other."""

    def __init__(
        self, settings: Settings, catalogue: Catalogue, subscriptions: Sequence[Subscription], broker: LocalBroker, clock: Clock
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._subscriptions = subscriptions
        self._broker = broker
        self._clock = clock
        self._listening = [(one.dead_letters, partial(self._log_dead_letters, one)) for one in subscriptions]
        self._logged_until = dict.fromkeys((one.dead_letters for one in subscriptions), 0)
        self._users = UserLoop()
        self._own = OwnLoop("local-events")
        self._process: LocalProcess | None = None

    async def start(self) -> None:
        for topic, on_record in self._listening:
            self._logged_until[topic] = self._broker.end(topic)
            self._broker.listen(topic, on_record)
        await self._there(self._start())

    async def stop(self) -> None:
        if self._process is not None:
            await self._there(self._end(self._process))
        for topic, on_record in self._listening:
            self._broker.unlisten(topic, on_record)
        await _aside(partial(self._users.stop, USER_LOOP_STOP_SECONDS))
        await _aside(self._own.close)

    async def forget(self, key: str) -> None:
        for one in self._subscriptions:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call_forget(one.subscriber, key), self._users.loop))

    async def _there(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the event loop of the worker, and wait until it has ended."""
        await asyncio.wrap_future(self._own.begin(work))

    async def _start(self) -> None:
        inside = _LogPublisher(self._settings, self._catalogue, self._broker, self._clock)
        self._process = LocalProcess(
            "local", self._settings, self._subscriptions, broker=self._broker, scripts=MemoryScripts(self._clock.now_ms),
            producer=MemoryProducer(self._broker), events=inside, clock=self._clock, slots=self._slots, users=self._users.loop,
            lifespan=self._catalogue.lifespan, on_fatal=self._failed,
        )  # fmt: skip
        await self._process.start()

    async def _end(self, process: LocalProcess) -> None:
        await process.stop(last_release_seconds(self._settings))
        # Cancelled tasks, such as a claim, must end before their event loop does.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    def _slots(self, one: Subscription, on_ended: OnEnded) -> Executor:
        declared = one.subscriber
        function, tracing = declared.function, tracing_of(self._settings)
        if tracing is not None:
            function = traced(function, declared, self._settings.app_id, tracing, self._clock)
        given = (function, declared.concurrency, declared.timeout_ms, self._clock, on_ended)
        return AsyncExecutor(self._users.loop, *given) if declared.is_async else ThreadExecutor(*given)

    def _failed(self, member: LocalMember, error: BaseException) -> None:
        logger.error("a subscriber in this process has failed and is restarted", exc_info=error)
        asyncio.get_running_loop().call_later(REASSIGN_SECONDS, member.assign)

    def _log_dead_letters(self, one: Subscription) -> None:
        """Log the new dead letters of a subscriber, because a topic in memory cannot be inspected."""
        dead_letters = self._broker.records(one.dead_letters, self._logged_until[one.dead_letters])
        self._logged_until[one.dead_letters] += len(dead_letters)
        for dead_letter in dead_letters:
            # The headers of the dead letter come before those of its event, so the first value of a name counts.
            headers = {name: (value or b"").decode(errors="replace") for name, value in reversed(dead_letter.headers)}
            shown = (headers.get(name, "") for name in ("reason", "event-id", "attempts", "detail", "trace"))
            logger.error("dead letter subscriber=%s reason=%s event=%s attempts=%s detail=%s\n%s", one.subscriber.name, *shown)


async def _aside(act: Callable[[], None]) -> None:
    """Run a blocking function in another thread and wait for it.

    During interpreter shutdown, when executors accept no work, run the function in this thread.
    """
    try:
        running = asyncio.get_running_loop().run_in_executor(None, act)
    except RuntimeError:
        act()
    else:
        await running
