"""Test kit for subscribers: publish events, advance a virtual clock, check the attempts. It needs neither Kafka nor Redis.

Events are encoded to bytes, and processed by the code of a worker: codec, offset tracker, commit metadata, retries, time-outs,
order, and the protocol of claims and commits. The log, the consumer groups and the state in Redis are in memory.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from streams_app.delivery.batch import TP
from streams_app.delivery.producer import OutgoingRecord
from streams_app.errors import ConfigurationError
from streams_app.events.declaration import Event, M, T
from streams_app.events.headers import FOLD_ID
from streams_app.folding.core.record import FoldedRecord
from streams_app.formatting import milliseconds, parse_duration
from streams_app.local.settings import settings_of
from streams_app.settings import Settings
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.received import Received
from streams_app.subscribers.declaration.subscriber import Records, Subscriber, subscriber
from streams_app.subscribers.declaration.subscription import Subscription, subscriptions_of
from streams_app.subscribers.execution.decoding import decode_of
from streams_app.testing.folds import FoldTester
from streams_app.testing.idempotence import assert_idempotent
from streams_app.testing.made_events import record_of
from streams_app.testing.results import Run, SubscriberDeadLetter, UnseenDeadLettersError
from streams_app.testing.workers import Workers

Declared: TypeAlias = Subscriber[Any, Any, Any]

APP_ID: Final = "test"


class SubscriberTester:
    """Runs the subscribers of one application under a virtual clock; a context manager.

    ::

        with SubscriberTester(ship, clock="2026-01-01") as kit:
            kit.publish(order_paid, OrderPaid("o1", 500))
            kit.advance("1m")
            assert [(run.attempt, run.outcome) for run in kit.runs(ship)] == [(1, "retry"), (2, "done")]

    Each method returns when all work that is due at the current time is done. The clock is
    advanced only by :meth:`advance`, by simulated faults that take time, and by :meth:`assert_idempotent` if the function waits.
    ``async`` functions run on a virtual event loop: ``asyncio.sleep`` takes no real time and ends during :meth:`advance`; until
    then the attempt is ``running``. Functions without ``async`` are called directly, and not in a thread as in a worker.

    The end of the block raises :class:`UnseenDeadLettersError` if events became dead letters that the test has not read.
    """

    def __init__(
        self, *declared: Declared | Catalogue, clock: str | datetime = "2026-01-01", settings: Settings | None = None
    ) -> None:
        """Create a kit without starting it.

        Args:
            declared: Subscribers, or a catalogue with its lifespan. With a catalogue, only its events can be published, as in
                production; without one, any event can.
            clock: Initial time in ISO 8601, in UTC unless it contains a time zone.
            settings: Settings with overrides of subscribers, limits and folds; None: the defaults.

        Raises:
            ConfigurationError: An argument has a wrong type, or the declarations contradict each other or the settings.
        """
        if faults := _given_faults(declared, settings):
            raise ConfigurationError(faults)
        self._declared = declared
        self._is_open = False
        catalogue = _catalogue_of_given(declared)
        self._settings = settings or settings_of(APP_ID, catalogue)
        self._subscriptions = {one.subscriber.name: one for one in subscriptions_of(catalogue, self._settings)}
        enabled = [one for one in self._subscriptions.values() if one.subscriber.is_enabled]
        begin = datetime.fromisoformat(clock) if isinstance(clock, str) else clock
        start_ms = round((begin if begin.tzinfo else begin.replace(tzinfo=UTC)).timestamp() * 1000)
        self._workers = Workers(self._settings, catalogue, enabled, start_ms, knows_all=catalogue in declared)
        self._seen: defaultdict[str, int] = defaultdict(int)

    # ---- the block

    def __enter__(self) -> Self:
        """Start a process with all subscribers.

        Raises:
            RuntimeError: An event loop is already running, because the test is ``async``.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._workers.open()
            self._is_open = True
            return self
        raise RuntimeError("SubscriberTester has loops of its own: use it in a test without async")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the processes.

        Raises:
            UnseenDeadLettersError: The block raised no error, and events became dead letters that the test has not read.
        """
        self._is_open = False
        self._workers.close()
        unseen = [
            (name, dead_letter) for name in self._subscriptions for dead_letter in self._dead_letters_of(name)[self._seen[name] :]
        ]
        if unseen and kind is None:
            raise UnseenDeadLettersError(unseen)

    # ---- events and time

    @property
    def now(self) -> datetime:
        """Current wall-clock time of the virtual clock, in UTC."""
        return datetime.fromtimestamp(self._workers.time.now_ms() / 1000, UTC)

    def publish(
        self,
        event: Event[T, M] | Records[T],
        data: T,
        *,
        before: T | None = None,
        metadata: M | None = None,
        context: Mapping[str, str] | None = None,
        event_id: str | None = None,
        group: str | None = None,
    ) -> str:
        """Publish an event like a producer, and return its id.

        Args:
            event: Declaration of the event; or ``records_of(…)``, for a folded record without a :class:`FoldTester`.
            data: Payload of the event.
            before: Payload before the change that the event reports; None: the event has none.
            metadata: Metadata of the type that the event declares; None: the event has none.
            context: Text entries of the event, which are copied to the events that its subscribers publish.
            event_id: Id of the event; None: a new id.
            group: Group key of a folded record; None: an empty key.

        Raises:
            BadEventError: The event does not match its declaration.
            ConfigurationError: The catalogue of the kit does not declare the event.
            ValueError: The event is a folded record, and no subscriber handles the records of its fold.
        """
        workers, outside = self._workers, self._workers.outside
        if isinstance(event, Records):
            topic = self._topic_of(event.fold)
            record = record_of(event, data, workers.broker.end(topic), workers.time.now_ms(), event_id, group)
            self._emitted(topic, record)
            return record.fold_id.decode()
        publishing = workers.events.publish(event, data, before=before, metadata=metadata, context=context, event_id=event_id)
        return workers.wait_for(outside.create_task(publishing))

    def produce(
        self, event: Event[Any, Any], value: bytes | None, *, key: bytes | None = None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """Append a record with any bytes to the topic of an event, like a producer that does not know the event's declaration."""
        self._workers.broker.append(OutgoingRecord(event.topic, key, value, list(headers)))
        self._workers.settle()

    def advance(self, by: str | timedelta) -> None:
        """Advance the virtual clock by a duration, and run everything that becomes due, in order."""
        self._workers.advance(_seconds(by))

    # ---- results

    def runs(self, subscriber: Declared) -> list[Run]:
        """Return the attempts of a subscriber, in the order in which they began: a :class:`.Run` for each call of its function.

        Raises:
            ValueError: This tester does not have this subscriber.
        """
        return list(self._workers.runs[self._subscription_of(subscriber).subscriber.name])

    def published(self, event: Event[T, M]) -> list[Received[T, M]]:
        """Return all events of one kind in the simulated topic, in order, whether subscribers or the test have published them.

        Raises:
            BadEventError: The topic of the event has a record that is not valid as this event. The test may have appended it with
                :meth:`produce`.
        """

        @subscriber(event, idempotent="yes", description="Reads the published events.")
        def read(_: Received[T, M]) -> None:
            """Do nothing: this subscriber only declares the type to which the records are decoded."""

        decode = decode_of(read, self._settings.limits, None)
        found = [decode(TP(event.topic, 0), record, 1) for record in self._workers.broker.records(event.topic)]
        return [one.event for one in found if one is not None]

    def dead_letters(self, subscriber: Declared) -> list[SubscriberDeadLetter]:
        """Return all dead letters of a subscriber, in order, and mark them as read by the test.

        Raises:
            ValueError: The kit does not have this subscriber.
        """
        name = self._subscription_of(subscriber).subscriber.name
        dead_letters = self._dead_letters_of(name)
        self._seen[name] = len(dead_letters)
        return dead_letters

    # ---- simulated faults

    def crash(self, at: Literal["now", "begun", "done"] = "now", of: Declared | None = None) -> None:
        """Kill the process of the subscribers like SIGKILL; another process takes over after a session timeout.

        Args:
            at: When the process is killed: ``now``; with ``begun``, when the next attempt has begun, before its function runs; with
                ``done``, when the next function has returned, before its outcome is recorded.
            of: The subscriber whose attempt counts for ``begun`` and ``done``; None: an attempt of any subscriber.

        Raises:
            ValueError: ``at`` is none of these words, or the kit does not have the subscriber ``of``.
        """
        self._workers.crash(at, None if of is None else self._subscription_of(of).subscriber.name)

    def forget(self, key: str) -> list[str]:
        """Call the functions ``forget`` of the subscribers with a key, as ``streams-app forget`` does.

        Returns:
            The names of the subscribers that declare one.
        """
        called = {name: one.subscriber.forget for name, one in self._subscriptions.items() if one.subscriber.forget is not None}
        for function in called.values():
            if (result := function(key)) is not None:
                self._workers.run_outside_attempts(_awaited(result))
        return list(called)

    def wipe_redis(self) -> None:
        """Delete all data in the simulated Redis."""
        self._workers.scripts.wipe()
        self._workers.settle()

    def rebalance(self) -> None:
        """Let the current process release its partitions, then move the subscribers to a new process."""
        self._workers.hand_over()

    def freeze(self, lasting: str | timedelta) -> None:
        """Stop the process of the subscribers like SIGSTOP, let time pass, and continue the process.

        If the time is longer than the session timeout, another process takes over the subscribers, and all later writes of the
        frozen process are rejected.
        """
        self._workers.freeze(_seconds(lasting))

    # ---- idempotence

    def assert_idempotent(
        self,
        subscriber: Subscriber[T, M, Any],
        data: T | Received[T, M],
        *,
        observe: Callable[[], object],
        reset: Callable[[], object] | None = None,
    ) -> None:
        """Check that a function has the same effects if it is called once, twice, or interrupted at any point and called once more.

        The calls do not use the log of this kit, and may also be made outside the ``with`` block. Published events are compared by
        id and payload.

        Args:
            subscriber: The subscriber that has the function.
            data: Payload of the event, or an event with this payload.
            observe: Returns the state to compare, such as the rows of the tables that the function writes.
            reset: Restores the initial state before each case; None: each call begins with the state of the previous one, so
                an error that occurs only in a first call is not found.

        Raises:
            AssertionError: The effects differ; the message has a diff. With ``reset``, also if a call has no effect.
            ValueError: The kit does not have this subscriber.
        """
        self._subscription_of(subscriber)
        if not self._is_open:
            with SubscriberTester(*self._declared, clock=self.now, settings=self._settings) as kit:
                return kit.assert_idempotent(subscriber, data, observe=observe, reset=reset)
        payload = data.data if isinstance(data, Received) else data
        assert_idempotent(subscriber, payload, self._workers.time.now_ms, self._workers.run_outside_attempts, observe, reset)

    # ---- folds

    def connect(self, tester: FoldTester) -> FoldTester:
        """Connect a fold: from now on it receives the events of its source, and its subscribers receive the folded records.

        The fold uses the clock of this tester from now on. The result is ``tester``.

        Args:
            tester: Tester of the fold, to which no events have been sent.

        Raises:
            ValueError: Events were sent to ``tester`` before, or no subscriber handles the records of the fold.
        """
        workers, source = self._workers, tester.fold.source
        topic = self._topic_of(tester.fold.name)
        tester.follow(workers.time.now_ms(), partial(self._emitted, topic))
        workers.stage.add_fold(tester)
        offsets = count(workers.broker.end(source))
        workers.broker.listen(source, lambda: self._fold(tester, next(offsets)))
        return tester

    def _emitted(self, topic: str, record: FoldedRecord) -> None:
        self._workers.broker.append(OutgoingRecord(topic, record.key, record.value, [(FOLD_ID, record.fold_id)]))
        self._workers.settle()

    def _fold(self, tester: FoldTester, offset: int) -> None:
        (record,) = self._workers.broker.records(tester.fold.source, offset, 1)
        tester.send(record.value, key=record.key, at_ms=record.timestamp)

    # ---- look-ups

    def _topic_of(self, fold: str) -> str:
        """Return the topic of the records of a fold."""
        topics = {
            source.fold: one.topic for one in self._subscriptions.values() if isinstance(source := one.subscriber.source, Records)
        }
        if fold not in topics:
            raise ValueError(f"no subscriber takes the records of {fold!r}; taken are those of: {', '.join(topics) or 'none'}")
        return topics[fold]

    def _subscription_of(self, subscriber: Declared) -> Subscription:
        name = getattr(subscriber, "name", None)
        if name not in self._subscriptions:
            raise ValueError(f"{name or subscriber!r} is not a subscriber of this kit, which has: {', '.join(self._subscriptions)}")
        return self._subscriptions[name]

    def _dead_letters_of(self, name: str) -> list[SubscriberDeadLetter]:
        return [SubscriberDeadLetter.of(record) for record in self._workers.broker.records(self._subscriptions[name].dead_letters)]


async def _awaited(result: Awaitable[None]) -> None:
    await result


def _seconds(duration: str | timedelta) -> float:
    return milliseconds(parse_duration(duration)) / 1000


def _given_faults(declared: Sequence[object], settings: object) -> list[str]:
    """Check the arguments of a :class:`SubscriberTester`; return a sentence for each fault."""
    faults = [
        f"{one!r} is neither a subscriber nor a Catalogue" for one in declared if not isinstance(one, (Subscriber, Catalogue))
    ]
    if not declared or (len(declared) > 1 and any(isinstance(one, Catalogue) for one in declared)):
        faults.append("SubscriberTester takes subscribers, or one catalogue")
    if settings is not None and not isinstance(settings, Settings):
        faults.append(f"settings = {settings!r} is not a Settings object, as in Settings(app_id=…, events=…, subscribers=…)")
    return faults


def _catalogue_of_given(declared: Sequence[Subscriber[Any, Any, Any] | Catalogue]) -> Catalogue:
    """Return the given catalogue, or a new one that contains the given subscribers and their events."""
    for one in declared:
        if isinstance(one, Catalogue):
            return one
    subscribers = [one for one in declared if isinstance(one, Subscriber)]
    events = dict.fromkeys(one.source for one in subscribers if isinstance(one.source, Event))
    return Catalogue(events=tuple(events), subscribers=subscribers)
