"""Why has this subscriber not finished this event? Asked of the broker, Redis and a worker; nothing is changed."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.commits import Committed
from streams_app.delivery.marks import marks_of
from streams_app.delivery.processor import Mark
from streams_app.errors import BadEventError, ConfigurationError, StreamsAppError
from streams_app.events.codec import event_id
from streams_app.events.declaration import Event
from streams_app.events.headers import TYPE, header
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.log_reader import log_reader, read_ranges, stable_ends
from streams_app.operating.dead_letters import letters_of
from streams_app.operating.explained_event import Found, describe, describe_none
from streams_app.operating.groups import redis_of
from streams_app.operating.letters import Letter, Selection
from streams_app.operating.worker_pages import Page, pages, usual_url
from streams_app.settings import Settings
from streams_app.subscribers.keys import SubscriberKeys
from streams_app.subscribers.note import decoded
from streams_app.subscribers.placing import committed
from streams_app.subscribers.put_back import again_topic, is_for
from streams_app.subscribers.store import Entry
from streams_app.subscribers.subscription import Subscription

PLACE: Final = re.compile(r"([a-zA-Z0-9._-]{1,249}):(\d{1,9}):(\d{1,18})", re.ASCII)
MOST_LETTERS: Final = 5


async def explain_event(settings: Settings, one: Subscription, which: str, clock: Clock, width: int) -> str:
    """What there is to say about one event of one subscriber: a verdict and five lines, each with its label.

    Args:
        settings: Where Redis, the broker and a worker are; only the broker has to answer.
        one: The subscriber.
        which: Id of the event, or TOPIC:PARTITION:OFFSET.
        clock: Wall clock.
        width: Columns of the terminal.

    Raises:
        TryAgainError: The broker does not answer, or does not tell what the group has committed.
        ConfigurationError: The subscriber does not read that topic, or there is no such partition.
    """
    topics = [one.topic, again_topic(settings.app_id)]
    place = PLACE.fullmatch(which)
    if place is not None and place[1] not in topics:
        raise ConfigurationError([f"subscriber {one.subscriber.name!r} reads {' and '.join(topics)}, not {place[1]}"])
    topic = place[1] if place is not None else one.topic
    commits, partitions = await _commits(settings, one, topic)
    async with log_reader(settings.kafka, topic, range(partitions)) as consumer:
        tps = [TopicPartition(topic, number) for number in range(partitions)]
        begins = await consumer.beginning_offsets(tps)
        ends = await stable_ends(consumer, tps)
        log = _Log(settings, one, consumer, commits, {TP(*tp): (begins[tp], ends[tp]) for tp in tps})
        found = await log.at(TP(topic, int(place[2])), int(place[3])) if place is not None else await log.with_id(which)
        letters = await _letters(settings, one, found, which)
        if found is None and letters and (origin := letters[-1].place) is not None:
            found = await log.of_letter(TP(letters[-1].headers.get("source-topic", one.topic), origin[0]), origin[1], which)
    page = await _page(settings)
    if found is None:
        return describe_none(which, one, log.looked_at, page, width)
    found = await _kept(settings, one, found, letters)
    return describe(found, one, page, clock.now_ms(), width)


class _Log:
    """The topic of a subscriber, and how far its group is in it."""

    def __init__(
        self,
        settings: Settings,
        one: Subscription,
        consumer: AIOKafkaConsumer,
        commits: dict[TP, Committed],
        edges: dict[TP, tuple[int, int]],
    ) -> None:
        self._settings = settings
        self._one = one
        self._consumer = consumer
        self._commits = commits
        self.edges = edges
        self.looked_at = 0

    @property
    def unread(self) -> dict[TP, tuple[int, int]]:
        """What may hold unfinished events, of each partition."""
        return {tp: (max(begin, mark.offset if (mark := self.mark(tp)) else begin), end) for tp, (begin, end) in self.edges.items()}

    def mark(self, tp: TP) -> Mark | None:
        """What the group has committed for a partition."""
        held = self._commits.get(tp)
        return None if held is None else marks_of(held, [self._one.subscriber.name]).get(self._one.subscriber.name)

    async def at(self, tp: TP, offset: int) -> Found:
        """The event at an offset, whatever there is of it.

        Raises:
            ConfigurationError: There is no such partition.
        """
        if tp not in self.edges:
            raise ConfigurationError([f"topic {tp.topic!r} has partitions 0 to {len(self.edges) - 1}, not {tp.partition}"])
        begin, end = self.edges[tp]
        if begin <= offset < end:
            async for found in self._read({tp: (offset, offset + 1)}):
                return found
        return self._found(tp, offset)

    async def with_id(self, wanted: str) -> Found | None:
        """The first event from the committed offsets on that has an id."""
        async for found in self._read(self.unread):
            if found.event_id == wanted:
                return found
        return None

    async def of_letter(self, tp: TP, offset: int, wanted: str) -> Found:
        """The event of a dead letter, of which the log may have nothing any more."""
        begin, end = self.edges.get(tp, (0, 0))
        if offset < end:
            return replace(await self.at(tp, offset), event_id=wanted)
        return Found(tp, offset, begin, offset + 1, self.mark(tp), event_id=wanted)

    async def _read(self, ranges: dict[TP, tuple[int, int]]) -> AsyncIterator[Found]:
        async for batch in read_ranges(self._consumer, ranges):
            for record in batch.records:
                self.looked_at += 1
                yield self._found(batch.tp, record.offset, record)

    def _found(self, tp: TP, offset: int, record: Any = None) -> Found:
        begin, end = self.edges[tp]
        mark = self.mark(tp)
        note = None if mark is None else decoded(mark.note, mark.offset, end)
        if record is None:
            return Found(tp, offset, begin, end, mark, note)
        try:
            named = event_id(record.headers, self._settings.limits, *tp, offset)
        except BadEventError:
            named = f"{tp.topic}:{tp.partition}:{offset}"
        is_put_back = tp.topic == again_topic(self._settings.app_id)
        told = "" if is_put_back else header(record.headers, TYPE) or ""
        return Found(tp, offset, begin, end, mark, note, named, told, record.timestamp, self._is_ours(tp, record.headers, told))

    def _is_ours(self, tp: TP, headers: Any, told: str) -> bool:
        if tp.topic == again_topic(self._settings.app_id):
            return is_for(self._one.subscriber.name, headers)
        return not isinstance(self._one.subscriber.source, Event) or told in ("", self._one.subscriber.source.key)


async def _commits(settings: Settings, one: Subscription, topic: str) -> tuple[dict[TP, Committed], int]:
    """What the group has committed, and how many partitions the topic has."""
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, [topic])
        if topic not in counts:
            raise ConfigurationError([f"topic {topic!r} does not exist: create it with `streams-app topics create`"])
    return await committed(settings, one, [TP(topic, number) for number in range(counts[topic])]), counts[topic]


async def _letters(settings: Settings, one: Subscription, found: Found | None, which: str) -> list[Letter]:
    """The dead letters of an event, oldest first."""
    mine = Selection(settings.app_id, one.subscriber.name, kind="subscriber")
    if found is None:
        mine = replace(mine, event_ids=frozenset({which}))
    else:
        mine = replace(mine, places=frozenset({(found.tp.partition, found.offset)}))
    try:
        return (await letters_of(settings, one.dead_letters, mine, MOST_LETTERS)).letters
    except ConfigurationError:
        return []  # there is no such topic: nothing was ever refused


async def _kept(settings: Settings, one: Subscription, found: Found, letters: list[Letter]) -> Found:
    """The same with what Redis has of it; that it does not answer is told, and no fault of the command."""
    keys = SubscriberKeys(settings.app_id, one.subscriber.name, *found.tp)
    try:
        async with redis_of(settings) as redis:
            text: Any = await redis.hget(keys.marks[1], str(found.offset))
    except StreamsAppError as error:
        return replace(found, redis_fault=str(error), letters=tuple(letters))
    kept = Entry(*map(int, text.split())) if text else None
    return replace(found, kept=kept, letters=tuple(letters))


async def _page(settings: Settings) -> Page | None:
    url = usual_url(settings.http)
    return (await pages(settings.http, [url]))[0] if url else None
