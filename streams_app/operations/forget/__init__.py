"""Removes a key from everything that an application derives from its events, for ``streams-app forget``.

The command notes the ends of the topics that the application reads. What was in them then is forgotten, and what arrives afterwards
is new. It removes the key from each component at once, so that nothing more is derived from it. Then it visits the components again
in the order in which data passes them: it waits until the component has read what was in its topics, and removes what it has stored
meanwhile. Every removal may be repeated, and none depends on one before it. So after a crash, the command is simply run again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.errors import StreamsAppError, TryAgainError
from streams_app.kafka.admin import admin_client
from streams_app.kafka.group_offsets import commits_in, in_group, member_count
from streams_app.operations.flush import POLL_SECONDS
from streams_app.operations.forget.dead_letters import COUNTED, CountedRecords, Show, count_records
from streams_app.operations.forget.part import Forgetting, ForgottenKey, Kept, Part, Receipt
from streams_app.operations.forget.state import FoldPart, JournalPart, PresencePart, StorePart, ViewPart
from streams_app.operations.forget.topics import (
    TopicFacts,
    WantedTombstones,
    bounds_of,
    facts_of,
    kept_in,
    tombstone_parts,
    with_times,
)
from streams_app.operations.forget.undeclared import UndeclaredState, undeclared_state
from streams_app.operations.groups import redis_of
from streams_app.requirements.components import FOLDS, JOURNALS, LIVE_VIEWS, READ_STORES, SUBSCRIBERS, components_of, topics_of
from streams_app.requirements.workload import declared
from streams_app.settings import LiveView, Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.execution.executor import call_forget


class SubscriberPart:
    """The function ``forget`` of a subscriber. It is called once the subscriber has finished the events that its topic had."""

    has_offsets, fills = False, ""

    def __init__(self, forgetting: Forgetting, one: Subscription) -> None:
        self.where = f"subscriber {one.subscriber.name}"
        self._forgetting, self._one = forgetting, one
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
        tps = [tp for tp in self._forgetting.logs if tp.topic == topic]
        async with in_group(kafka, self._one.group) as consumer:
            commits = await commits_in(kafka, consumer, self._one.group, tps)
        return self._forgetting.unread(topic, {tp.partition: commit.offset for tp, commit in commits.items()})


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

CALLS: Final = "calls of its function forget"


class Request(NamedTuple):
    """What the command is asked to forget.

    Attributes:
        typed: Group key as typed, see :func:`.keys_typed`.
        tombstones: Which compacted topics get tombstones.
        counts_dead_letters: Whether to count dead letters and replayed events of the key.
        show: Called with a message, the number of records that are counted so far, and how many there are.
    """

    typed: str
    tombstones: WantedTombstones = WantedTombstones()
    counts_dead_letters: bool = True
    show: Show = lambda words, done, total: None


async def plan_forget(settings: Settings, request: Request, clock: Clock) -> Receipt:
    """Return what :func:`forget` would remove at present, and what it never removes. Change nothing."""
    async with redis_of(settings) as redis:
        run = await _Run.begun(settings, redis, request)
        found: dict[str, Counter[str]] = {}
        unknown = list(run.undeclared.not_searched)
        for part in run.parts:
            try:
                found[part.where] = await part.find()
            except StreamsAppError as error:
                unknown.append(f"{part.where}: {error}")
        return Receipt(found, unknown, await run.kept(clock, unknown), run.forgetting.logs)


async def forget(settings: Settings, request: Request, clock: Clock, wait_seconds: float) -> Receipt:
    """Remove a key from every component of the application. The call may be repeated, also after a crash.

    Args:
        wait_seconds: How long to wait for workers to read what was in the topics at the beginning; 0: do not wait.

    Raises:
        TryAgainError: Kafka or Redis does not answer. What was removed before stays removed.
        ConfigurationError: A topic that is to get a tombstone cannot have one. Nothing is removed.
    """
    async with redis_of(settings) as redis:
        run = await _Run.begun(settings, redis, request, await _workers(settings))
        return await run.removed(clock, wait_seconds)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of the command, or of its plan."""

    request: Request
    forgetting: Forgetting
    topics: Sequence[TopicFacts]
    parts: Sequence[Part]
    undeclared: UndeclaredState

    @classmethod
    async def begun(cls, settings: Settings, redis: Redis, request: Request, workers: int = 0) -> Self:
        key, wanted = ForgottenKey.of(request.typed), request.tombstones
        topics = await facts_of(settings, topics_of(declared(settings)))
        logs = await bounds_of(settings, {facts.topic.name: facts.partitions for facts in topics})
        forgetting = Forgetting(settings, redis, key, logs, workers)
        tombstones = tombstone_parts(forgetting, topics, wanted)
        undeclared = await undeclared_state(forgetting)
        forgetting.retired_folds.extend(undeclared.folds)
        return cls(request, forgetting, topics, [*undeclared.parts, *_parts(forgetting), *tombstones], undeclared)

    async def kept(self, clock: Clock, not_yet: list[str]) -> list[Kept]:
        """Return what the command leaves, and until when; add to ``not_yet`` what could not be counted."""
        now_ms = clock.now_ms()
        kept: list[Kept | None] = []
        for facts in self.topics:
            timed = await with_times(self.forgetting.settings, facts, self.forgetting.logs, now_ms)
            counted = None
            try:
                counted = await self._counted(facts)
            except StreamsAppError as error:
                not_yet.append(f"{facts.where}: its records could not be counted: {error}")
            kept.append(kept_in(timed, self.forgetting.key, self.request.tombstones, now_ms, counted))
        return [*filter(None, kept), *self.undeclared.kept, *_never_searched(self.forgetting.settings)]

    async def _counted(self, facts: TopicFacts) -> CountedRecords | None:
        """Count the records of the key in a topic of dead letters or replayed events; workers may have added some meanwhile."""
        if not self.request.counts_dead_letters or facts.topic.role not in COUNTED:
            return None
        settings = self.forgetting.settings
        logs = await bounds_of(settings, {facts.topic.name: facts.partitions})
        return await count_records(settings, facts.topic.name, logs, self.forgetting.key, self.request.show)

    async def removed(self, clock: Clock, wait_seconds: float) -> Receipt:
        """Remove the key; return the receipt."""
        removed: dict[str, Counter[str]] = {part.where: Counter() for part in self.parts}
        not_yet = list(self.undeclared.not_searched)
        for part in self.parts:
            with suppress(StreamsAppError):  # repeated below
                removed[part.where] += await part.remove(is_last=not self.forgetting.workers)
        until_ms = clock.monotonic_ms() + int(wait_seconds * 1_000)
        for part in self.parts:
            try:
                unfinished = await self._waited(part, clock, until_ms)
                removed[part.where] += await part.remove(is_last=True)
                left = await part.find() if part.has_offsets else Counter[str]()
                await self._read_bounds(part.fills)
            except StreamsAppError as error:  # the other components are erased nevertheless
                not_yet.append(f"{part.where}: {error}")
            else:
                not_yet += [f"{part.where}: {why}" for why in unfinished]
                not_yet += [f"{part.where}: still there: {number} {what}" for what, number in left.items() if number]
        kept = await self.kept(clock, not_yet)
        return Receipt(removed, not_yet, kept, self.forgetting.logs)

    async def _waited(self, part: Part, clock: Clock, until_ms: int) -> list[str]:
        """Wait until a component has read its topics up to their ends; return what is still missing when time is over."""
        while why := await part.unfinished():
            if not self.forgetting.workers or clock.monotonic_ms() >= until_ms:
                return why
            await asyncio.sleep(POLL_SECONDS)
        return []

    async def _read_bounds(self, topic: str) -> None:
        """Read the bounds of a topic once more, which a component has filled until now: they count for those that read it."""
        counts = Counter(tp.topic for tp in self.forgetting.logs)
        if topic in counts:
            self.forgetting.logs.update(await bounds_of(self.forgetting.settings, {topic: counts[topic]}))


def _parts(forgetting: Forgetting) -> list[Part]:
    return [part_of(forgetting, one) for listed, part_of in PARTS.values() for one in listed(forgetting.settings)]


async def _workers(settings: Settings) -> int:
    """Return the number of members of the largest consumer group of the application; 0 also if the broker does not report it."""
    groups = {component.group for component in components_of(declared(settings))}
    async with admin_client(settings.kafka) as client:
        return max([await member_count(client, group) for group in groups], default=0)


def _never_searched(settings: Settings) -> list[Kept]:
    """Return the components that the command does not change."""
    return [
        Kept(f"subscriber {one.subscriber.name}", WITHOUT_FUNCTION)
        for one in declared(settings).subscriptions
        if one.subscriber.forget is None
    ]
