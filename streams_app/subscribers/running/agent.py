"""Agent of one subscriber: its consumer, and the processors of its partitions.

Each subscriber has its own consumer group, ``<app_id>.<name>``, so a rebalance, a failed client or a hanging function delays no
other subscriber.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.dead_letters import DeadLetterSender, RejectingComponent
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.delivery.ownership import LAST_COMMIT_SECONDS, OwnershipConfig
from streams_app.delivery.processor import Processors
from streams_app.delivery.producer import Producer
from streams_app.delivery.scripts import Scripts
from streams_app.errors import TryAgainError
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.group_agent import GroupAgent, config_of
from streams_app.kafka.group_member import GroupMember
from streams_app.schemas.waiting import PatientRegistry
from streams_app.settings import Settings
from streams_app.subscribers.declaration.subscriber import Idempotent, Subscriber
from streams_app.subscribers.execution.async_executor import AsyncExecutor, UserLoop
from streams_app.subscribers.execution.context import SubscriberContext
from streams_app.subscribers.execution.crash_isolation import CrashIsolation
from streams_app.subscribers.execution.decoding import Decode, function_of
from streams_app.subscribers.execution.dispatcher import Dispatcher, QueueLimit
from streams_app.subscribers.execution.executor import Attempt, Executor
from streams_app.subscribers.execution.loop_monitor import LoopMonitor
from streams_app.subscribers.execution.partition import SubscriberPartition
from streams_app.subscribers.execution.rate_limiter import RateLimiter
from streams_app.subscribers.execution.subscriber_metrics import SubscriberMetrics
from streams_app.subscribers.execution.thread_executor import ThreadExecutor
from streams_app.subscribers.execution.traced import traced
from streams_app.subscribers.guarantees.at_least_once import AtLeastOnceGuarantee
from streams_app.subscribers.guarantees.at_most_once import BeginCommits
from streams_app.subscribers.guarantees.deduplicated import DeduplicatedGuarantee
from streams_app.subscribers.guarantees.guarantee import Guarantee
from streams_app.subscribers.running.processor import RELEASE_SECONDS, SubscriberProcessor
from streams_app.subscribers.running.subscriber_gauges import UPDATE_SECONDS, SubscriberGauges
from streams_app.subscribers.state.keys import SubscriberKeys, rate_key
from streams_app.subscribers.state.retry_requests import RetryRequests
from streams_app.subscribers.state.store import RateStore, SubscriberScripts, SubscriberStore
from streams_app.subscribers.state.token_bucket import bucket_of
from streams_app.tracing import tracing_of

logger = logging.getLogger(__name__)

RERUN_SECONDS: Final = 5.0
"""How long a rebalance waits for running attempts if events may run twice; otherwise, it waits until their time-out."""

GUARANTEES: Final[dict[Idempotent, Callable[[SubscriberPartition], Guarantee]]] = {
    "yes": AtLeastOnceGuarantee,
    "unknown": DeduplicatedGuarantee,
    "no": lambda partition: DeduplicatedGuarantee(partition, BeginCommits(partition)),
}
"""Creates the delivery guarantee of a claimed partition, for each value of ``idempotent``."""

AHEAD: Final[dict[Idempotent, QueueLimit]] = {"yes": QueueLimit.MANY, "unknown": QueueLimit.SOON, "no": QueueLimit.NONE}

POLL_SECONDS: Final = 1.0
"""How often a worker looks for a request to retry now, while something waits."""

OnEnded: TypeAlias = Callable[[list[Attempt]], None]
MakeExecutor: TypeAlias = Callable[[OnEnded], Executor]


def release_seconds(subscriber: Subscriber[Any, Any, Any]) -> float:
    """Return the maximum duration of the release of a partition: for running and cancelled attempts, last writes and a commit."""
    running_seconds = RERUN_SECONDS if subscriber.is_repeatable else subscriber.timeout.total_seconds()
    return running_seconds + RELEASE_SECONDS + LAST_COMMIT_SECONDS


def last_release_seconds(settings: Settings) -> float:
    """Return the maximum duration of the release of all partitions at shutdown, with ``worker.grace`` for running attempts."""
    return settings.worker.grace_seconds + RELEASE_SECONDS + LAST_COMMIT_SECONDS


class SubscriberProcessors(Processors):
    """Creates the processors of the partitions of one subscriber."""

    def __init__(self, topics: Collection[str], context: SubscriberContext) -> None:
        self._topics = topics
        self._context = context

    @property
    def topics(self) -> Collection[str]:
        return self._topics

    def is_paused(self, topic: str) -> bool:
        """Return whether the reader is paused, because too many events are unfinished or the schema registry is unavailable."""
        schemas = self._context.schemas
        return self._context.dispatcher.is_full() or (schemas is not None and schemas.is_away)

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, SubscriberProcessor]:
        guarantee = GUARANTEES[self._context.subscriber.idempotent]
        return {self._context.subscriber.name: SubscriberProcessor(tp, self._context, guarantee)}


class SubscriberRuntime(NamedTuple):
    """Components that run one subscriber in one process; the dispatcher owns the executor slots."""

    dispatcher: Dispatcher
    subscriber_metrics: SubscriberMetrics
    processors: SubscriberProcessors
    config: OwnershipConfig


def assemble_subscriber(
    settings: Settings,
    subscriber: Subscriber[Any, Any, Any],
    *,
    topic: str,
    dead_letters: str,
    decode: Decode,
    scripts: Scripts,
    producer: Producer,
    clock: Clock,
    executor: MakeExecutor,
    on_fatal: Callable[[BaseException], None],
    crash_isolation: CrashIsolation,
    replays_topic: str = "",
    metrics: Metrics | None = None,
    schemas: PatientRegistry | None = None,
) -> SubscriberRuntime:
    """Assemble the components that run one subscriber, with given implementations of scripts and executor.

    Args:
        executor: Creates the executor. It is called with the function to which the executor passes attempts that have ended.
        on_fatal: Called with an error after which the consumer cannot continue.
        replays_topic: Topic of replayed events; "" if the application has none.
        metrics: Metrics of the worker; None: they are not exported.
        schemas: Fetches the schemas of framed events; None: no event is framed.
    """
    # Event ids are stored by hour, and due times by wall clock, so the clock must be correct.
    trusted = clock if isinstance(clock, TrustedClock) else TrustedClock(clock)
    remember_ms = 0 if subscriber.is_repeatable else subscriber.remember_ms
    component = RejectingComponent("subscriber", subscriber.name, settings.app_id, dead_letters)

    def store(tp: TP, token: str) -> SubscriberStore:
        return SubscriberStore(scripts, SubscriberKeys(settings.app_id, subscriber.name, *tp), token, remember_ms=remember_ms)

    def dead_letter_writer(tp: TP) -> DeadLetterSender:
        return DeadLetterSender(component, tp, producer, trusted, on_kept=lambda name, reason: None)

    rate_limiter = None
    if (rate := subscriber.rate) is not None:
        key = rate_key(settings.app_id, subscriber.name)
        rate_limiter = RateLimiter(
            subscriber.name, rate, RateStore(scripts, key, secrets.token_hex(8), bucket_of(rate)), trusted, on_fatal
        )
    metrics = metrics or Metrics(settings)
    metrics.log_went_back_events.labels(name=subscriber.name)
    subscriber_metrics = SubscriberMetrics(metrics, subscriber.name, subscriber.event_key, clock)
    dispatcher = Dispatcher(
        subscriber.name, subscriber.concurrency, subscriber.patience_ms, subscriber.retry, trusted, executor,
        subscriber_metrics.ended,
        ahead=AHEAD[subscriber.idempotent], rate_limiter=rate_limiter, on_fatal=on_fatal,
    )  # fmt: skip
    context = SubscriberContext(
        subscriber,
        dispatcher,
        decode,
        store,
        dead_letter_writer,
        trusted,
        subscriber_metrics,
        replays_topic,
        crash_isolation,
        settings.limits,
        schemas,
    )
    config = replace(
        config_of(settings, subscriber.name, trusted, metrics, on_fatal),
        on_resync=lambda name, cause: subscriber_metrics.resynced(cause),
        release_seconds=release_seconds(subscriber),
        reclaim_seconds=release_seconds(subscriber) - LAST_COMMIT_SECONDS,
        # Only its commits contain the begun events, so an older commit must never overwrite a newer one.
        on_doubt=on_fatal if subscriber.requires_commit else None,
    )
    processors = SubscriberProcessors(_topics_of(topic, replays_topic), context)
    return SubscriberRuntime(dispatcher, subscriber_metrics, processors, config)


def _topics_of(topic: str, replays_topic: str) -> list[str]:
    return [topic, replays_topic] if replays_topic else [topic]


def remark_with(fault: str | None, name: str, text: str | None) -> str | None:
    """Combine the fault of a subscriber's consumer and a remark about the subscriber into one text; None if there is neither."""
    waits = None if fault is None else f"subscriber {name} waits: {fault}"
    return "; ".join(filter(None, [waits, text])) or None


class RetryPolling:
    """Carries out the requests of operators that what waits is retried now; asks Redis only while something waits."""

    def __init__(self, requests: RetryRequests, retry_now: Callable[[], int], has_waiting: Callable[[], bool]) -> None:
        self._requests = requests
        self._retry_now = retry_now
        self._has_waiting = has_waiting
        self._token = secrets.token_hex(8)
        self._done: bytes | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._forever(), name="retry requests")

    def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _forever(self) -> None:
        # A cancellation alone is not enough: redis-py may drop it, see streams_app.delivery.tasks.cancel_all.
        while self._task is asyncio.current_task():
            with suppress(*DEPENDENCY_ERRORS):  # the request waits as long as it is valid
                await self.once()
            await asyncio.sleep(POLL_SECONDS)

    async def once(self) -> None:
        """Carry out the request, if there is one that this worker has not carried out."""
        if not self._has_waiting():
            return
        request = await self._requests.present()
        if request is None or request == self._done:
            return
        self._done = request
        await self._requests.answer(self._token, self._retry_now())


class RunningSubscriber(NamedTuple):
    """A subscriber in one worker: its agent, and what ``/events`` shows of it."""

    agent: GroupAgent
    gauges: SubscriberGauges
    subscriber_metrics: SubscriberMetrics


def running_subscriber(
    settings: Settings,
    subscriber: Subscriber[Any, Any, Any],
    *,
    topic: str,
    dead_letters: str,
    decode: Decode,
    redis: Redis,
    producer: Producer,
    clock: Clock,
    users: UserLoop,
    metrics: Metrics,
    status: Status,
    on_fatal: Callable[[BaseException], None],
    crash_isolation: CrashIsolation,
    loop_monitor: LoopMonitor | None = None,
    replays_topic: str = "",
    schemas: PatientRegistry | None = None,
) -> RunningSubscriber:
    """Create the agent of a subscriber, without connecting; called on the event loop of the worker.

    Args:
        decode: Decodes records. Decoding that runs code of users is left to the executor slot.
        status: Receives a reason why the worker is not ready if the subscriber waits for an operator, and remarks about the
            subscriber, for example that its reader is paused.
        on_fatal: Ends the process; called if all slots hang, because threads that hang cannot be ended otherwise.
        replays_topic: Topic of replayed events; "" if the application has none.
        schemas: Fetches the schemas of framed events; None: no event is framed.
    """

    def make_executor(on_ended: OnEnded) -> Executor:
        function, tracing = function_of(subscriber, settings.limits), tracing_of(settings)
        if tracing is not None:
            function = traced(function, subscriber, settings.app_id, tracing, clock)
        given = (function, subscriber.concurrency, subscriber.timeout_ms, clock, on_ended)
        if not subscriber.is_async:
            return ThreadExecutor(*given, on_hung=hung)
        made = AsyncExecutor(users.loop, *given, on_hung=hung)
        if loop_monitor is not None:
            loop_monitor.add(subscriber.name, made)
        return made

    def hung(stacks: str) -> None:
        logger.critical("all slots of a subscriber hang, ending subscriber=%s stacks:\n%s", subscriber.name, stacks)
        on_fatal(TryAgainError(f"all slots of subscriber {subscriber.name!r} hang, their stacks are in the log"))

    member = GroupMember(
        settings,
        subscriber.name,
        _topics_of(topic, replays_topic),
        release_seconds=release_seconds(subscriber),
        last_release_seconds=last_release_seconds(settings),
    )
    dispatcher, subscriber_metrics, processors, config = assemble_subscriber(
        settings, subscriber, topic=topic, dead_letters=dead_letters, decode=decode, scripts=SubscriberScripts(redis),
        producer=producer, clock=clock, executor=make_executor, on_fatal=member.fail, crash_isolation=crash_isolation,
        replays_topic=replays_topic, metrics=metrics, schemas=schemas,
    )  # fmt: skip
    about = f"subscriber:{subscriber.name}"

    def report(text: str | None) -> None:
        outage = member.outage
        if outage.waits_for_operator:
            status.set_not_ready(about, f"subscriber {subscriber.name} does not run: {outage.fault}")
        else:
            status.clear(about)
        status.remark(about, remark_with(outage.fault, subscriber.name, text))

    gauges = SubscriberGauges(
        metrics, subscriber.name, dispatcher, subscriber_metrics, clock,
        remark=report,
        lag_ms=lambda: 0 if loop_monitor is None else loop_monitor.lag_ms(subscriber.name),
        waits_for_operator=lambda: member.outage.waits_for_operator,
        idempotent=subscriber.idempotent,
    )  # fmt: skip

    polling = RetryPolling(
        RetryRequests(redis, settings.app_id, subscriber.name), dispatcher.retry_now,
        lambda: bool(gauges.present.retrying) or gauges.present.is_suspended,
    )  # fmt: skip
    polling.start()

    async def end() -> None:
        polling.stop()
        gauges.log_rejections()
        await dispatcher.executor.stop()

    agent = GroupAgent("subscriber", member, processors, config, gauges.update, on_end=end, update_seconds=UPDATE_SECONDS)
    return RunningSubscriber(agent, gauges, subscriber_metrics)
