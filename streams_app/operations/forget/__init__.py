"""Removes a key from everything that an application derives from its events, for ``streams-app forget``.

The command notes the ends of the topics that the application reads. What was in them then is forgotten, and what arrives afterwards
is new. It removes the key from each component at once, so that nothing more is derived from it. Then it visits the components again
in the order in which data passes them: it waits until the component has read what was in its topics, and removes what it has stored
meanwhile. Every removal may be repeated, and none depends on one before it. So after a crash, the command is simply run again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, Final

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.errors import StreamsAppError, TryAgainError
from streams_app.kafka.admin import Topic, admin_client, partition_counts, topic_configs
from streams_app.kafka.group_offsets import commits_in, in_group, member_count
from streams_app.operations.flush import POLL_SECONDS
from streams_app.operations.forget.part import Forgetting, ForgottenKey, Kept, Part, Receipt, TopicBounds
from streams_app.operations.forget.state import FoldPart, JournalPart, PresencePart, StorePart, ViewPart, bounds_of
from streams_app.operations.groups import redis_of
from streams_app.requirements.components import FOLDS, JOURNALS, LIVE_VIEWS, READ_STORES, SUBSCRIBERS, components_of, topics_of
from streams_app.requirements.workload import declared
from streams_app.settings import LiveView, Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.execution.executor import call_forget


class SubscriberPart:
    """The function ``forget`` of a subscriber. It is called once the subscriber has finished the events that its topic had."""

    has_offsets = False

    def __init__(self, forgetting: Forgetting, one: Subscription) -> None:
        self.where = f"subscriber {one.subscriber.name}"
        self._forgetting, self._one = forgetting, one
        self._logs: dict[TP, TopicBounds] | None = None
        self._is_called = False

    async def find(self) -> Counter[str]:
        return Counter({CALLS: 1})

    async def remove(self, *, is_last: bool) -> Counter[str]:
        if not is_last or self._is_called:
            return Counter()
        lifespan = catalogue_of(self._forgetting.settings).lifespan
        try:
            async with lifespan() if lifespan is not None else nullcontext():
                await call_forget(self._one.subscriber, self._forgetting.key.typed)
        except Exception as error:  # it is the user's code, which may raise anything
            # Without its text, which may name the key.
            raise TryAgainError(f"its function forget has failed: {type(error).__name__}") from error
        self._is_called = True
        return Counter({CALLS: 1})

    async def unfinished(self) -> list[str]:
        if not self._one.subscriber.is_enabled:
            return []
        kafka, topic = self._forgetting.settings.kafka, self._one.topic
        if self._logs is None:  # read now, because folds have emitted to their output topics meanwhile
            async with admin_client(kafka) as client:
                counts = await partition_counts(client, [topic])
            self._logs = await bounds_of(self._forgetting.settings, counts)
        async with in_group(kafka, self._one.group) as consumer:
            commits = await commits_in(kafka, consumer, self._one.group, list(self._logs))
        return self._forgetting.unread(topic, {tp.partition: commit.offset for tp, commit in commits.items()}, self._logs)


def _with_function(settings: Settings) -> list[Subscription]:
    return [one for one in declared(settings).subscriptions if one.subscriber.forget is not None]


def _view_part(forgetting: Forgetting, view: LiveView) -> Part:
    return ViewPart(forgetting, view) if view.is_of_topic else PresencePart(forgetting, view)


PARTS: Final[Mapping[str, tuple[Callable[[Settings], Iterable[Any]], Callable[[Forgetting, Any], Part]]]] = {
    FOLDS.what: (lambda settings: settings.folds, FoldPart),
    JOURNALS.what: (lambda settings: settings.journals, JournalPart),
    LIVE_VIEWS.what: (lambda settings: settings.live, _view_part),
    READ_STORES.what: (lambda settings: settings.read_stores, StorePart),
    SUBSCRIBERS.what: (_with_function, SubscriberPart),
}
"""Kind of component → its components in the settings, and how a key is removed from one, in the order in which data passes them."""

WITHOUT_FUNCTION: Final = "it declares no function forget, so what it has stored elsewhere is not erased; in Redis it has no keys"

UNDECLARED: Final = Kept("components that are not declared", "their state is not searched; `streams-app reset` removes it")

CALLS: Final = "calls of its function forget"


async def plan_forget(settings: Settings, typed: str, clock: Clock) -> Receipt:
    """Return what :func:`forget` would remove at present, and what it never removes. Change nothing."""
    key = ForgottenKey.of(typed)
    topics, kept = await _topics(settings, clock.now_ms())
    logs = await bounds_of(settings, {topic.name: count for topic, count in topics.items()})
    async with redis_of(settings) as redis:
        found: dict[str, Counter[str]] = {}
        unknown: list[str] = []
        for part in _parts(Forgetting(settings, redis, key, logs)):
            try:
                found[part.where] = await part.find()
            except StreamsAppError as error:
                unknown.append(f"{part.where}: {error}")
    return Receipt(found, unknown, kept, logs)


async def forget(settings: Settings, typed: str, clock: Clock, wait_seconds: float) -> Receipt:
    """Remove a key from every component of the application. The call may be repeated, also after a crash.

    Args:
        typed: Group key as typed, see :func:`.keys_typed`.
        wait_seconds: How long to wait for workers to read what was in the topics at the beginning; 0: do not wait.

    Raises:
        TryAgainError: Kafka or Redis does not answer. What was removed before stays removed.
    """
    key = ForgottenKey.of(typed)
    topics, kept = await _topics(settings, clock.now_ms())
    logs = await bounds_of(settings, {topic.name: count for topic, count in topics.items()})
    workers = await _workers(settings)
    async with redis_of(settings) as redis:
        return await _forget(Forgetting(settings, redis, key, logs, workers), clock, wait_seconds, kept)


async def _forget(forgetting: Forgetting, clock: Clock, wait_seconds: float, kept: list[Kept]) -> Receipt:
    parts = _parts(forgetting)
    removed: dict[str, Counter[str]] = {part.where: Counter() for part in parts}
    not_yet: list[str] = []
    for part in parts:
        with suppress(StreamsAppError):  # repeated below
            removed[part.where] += await part.remove(is_last=not forgetting.workers)
    until_ms = clock.monotonic_ms() + int(wait_seconds * 1_000)
    for part in parts:
        try:
            unfinished = await _waited(part, forgetting, clock, until_ms)
            removed[part.where] += await part.remove(is_last=True)
            left = await part.find() if part.has_offsets else Counter[str]()
        except StreamsAppError as error:  # the other components are erased nevertheless
            not_yet.append(f"{part.where}: {error}")
        else:
            not_yet += [f"{part.where}: {why}" for why in unfinished]
            not_yet += [f"{part.where}: still there: {number} {what}" for what, number in left.items() if number]
    return Receipt(removed, not_yet, kept, forgetting.logs)


async def _waited(part: Part, forgetting: Forgetting, clock: Clock, until_ms: int) -> list[str]:
    """Wait until a component has read its topics up to the ends that they had; return what is still missing when time is over."""
    while why := await part.unfinished():
        if not forgetting.workers or clock.monotonic_ms() >= until_ms:
            return why
        await asyncio.sleep(POLL_SECONDS)
    return []


def _parts(forgetting: Forgetting) -> list[Part]:
    return [part_of(forgetting, one) for listed, part_of in PARTS.values() for one in listed(forgetting.settings)]


async def _workers(settings: Settings) -> int:
    """Return the number of members of the largest consumer group of the application; 0 also if the broker does not report it."""
    groups = {component.group for component in components_of(declared(settings))}
    async with admin_client(settings.kafka) as client:
        return max([await member_count(client, group) for group in groups], default=0)


async def _topics(settings: Settings, now_ms: int) -> tuple[dict[Topic, int], list[Kept]]:
    """Return the existing topics of the application with their numbers of partitions, and what of the key remains in each.

    Also return which components the command does not change.
    """
    topics = topics_of(declared(settings))
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, [topic.name for topic in topics])
        configs = await topic_configs(client, list(counts))
    existing = {topic: counts[topic.name] for topic in topics if topic.name in counts}
    kept = [_kept(topic, configs.get(topic.name), now_ms) for topic in existing]
    kept.append(UNDECLARED)
    kept += [
        Kept(f"subscriber {one.subscriber.name}", WITHOUT_FUNCTION)
        for one in declared(settings).subscriptions
        if one.subscriber.forget is None
    ]
    return existing, kept


def _kept(topic: Topic, config: Mapping[str, str] | None, now_ms: int) -> Kept:
    where = f"topic {topic.name} ({topic.role})"
    if config is None or "retention.ms" not in config:
        return Kept(where, "its records stay until retention removes them; the broker does not say when")
    if "compact" in config.get("cleanup.policy", "delete"):
        return Kept(where, "it is compacted: the newest record of each key stays until a tombstone for this key is produced")
    if (retention_ms := int(config["retention.ms"])) < 0:
        return Kept(where, "its records stay forever: retention.ms has no limit")
    return Kept(where, "its records stay until retention.ms removes them, at the latest from this time on", now_ms + retention_ms)
