"""Why has this subscriber not finished this event? Asked of the broker, Redis and a worker; nothing is changed."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from aiokafka import TopicPartition

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, StreamsAppError
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.log_ends import high_watermarks
from streams_app.kafka.log_reader import log_reader, stable_ends
from streams_app.operations.dead_letters import Listed, letters_of
from streams_app.operations.event_log import EventLog, Reach
from streams_app.operations.explained_event import EventFacts, Searched, describe, describe_none
from streams_app.operations.groups import redis_of
from streams_app.operations.letters import Selection
from streams_app.operations.worker_pages import Page, pages, usual_url
from streams_app.settings import Settings
from streams_app.subscribers.initial_offsets import committed
from streams_app.subscribers.keys import SubscriberKeys
from streams_app.subscribers.original_position import again_topic
from streams_app.subscribers.store import AttemptEntry
from streams_app.subscribers.subscription import Subscription

PLACE: Final = re.compile(r"([a-zA-Z0-9._-]{1,249}):(\d{1,9}):(\d{1,18})", re.ASCII)
MOST_LETTERS: Final = 10
CLOCKS_APART_MS: Final = 3_600_000
"""So much later than its letter a record may be by the clock of its producer."""


async def explain_event(settings: Settings, one: Subscription, which: str, clock: Clock, width: int, reach: Reach) -> str:
    """What there is to say about one event of one subscriber: a verdict and five lines, each with its label.

    Args:
        settings: Where Redis, the broker and a worker are; only the broker has to answer.
        one: The subscriber.
        which: Id of the event, or TOPIC:PARTITION:OFFSET.
        clock: Wall clock.
        width: Columns of the terminal.
        reach: How far an id is searched for.

    Raises:
        TryAgainError: The broker does not answer, or does not tell what the group has committed.
        ConfigurationError: The subscriber does not read that topic, or there is no such partition.
    """
    topics = [one.topic, again_topic(settings.app_id)]
    place = PLACE.fullmatch(which)
    if place is not None and place[1] not in topics:
        raise ConfigurationError([f"subscriber {one.subscriber.name!r} reads {' and '.join(topics)}, not {place[1]}"])
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, topics)
    if (wanted := one.topic if place is None else place[1]) not in counts:
        raise ConfigurationError([f"topic {wanted!r} does not exist: create it with `streams-app topics create`"])
    if place is None:
        found, listed, searched = await _searched(settings, one, which, counts, reach)
    else:
        async with _log(settings, one, place[1], counts) as log:
            found, searched = await log.at(TP(place[1], int(place[2])), int(place[3])), []
        listed = await _letters(settings, one, which, found, reach)
    page = await _page(settings)
    if found is None:
        return describe_none(which, one, searched, page, width)
    found = await _kept(settings, one, replace(found, letters=tuple(listed.letters), put_back=listed.put_back))
    return describe(found, one, page, clock.now_ms(), width)


async def _searched(
    settings: Settings, one: Subscription, which: str, counts: Mapping[str, int], reach: Reach
) -> tuple[EventFacts | None, Listed, list[Searched]]:
    """An event by its id, its dead letters, and what was searched: first of all what was put back and is not finished."""
    told: list[Searched] = []
    for topic, far in ((again_topic(settings.app_id), replace(reach, since_ms=None)), (one.topic, reach)):
        if topic not in counts:
            continue
        async with _log(settings, one, topic, counts) as log:
            found, searched = await log.with_id(which, far)
            told.append(searched)
            if found is None and log.hidden:
                async with log_reader(settings.kafka, topic, range(counts[topic]), isolation="read_uncommitted") as reader:
                    found = await log.hidden_with_id(reader, which, far)
            if found is not None:
                found = replace(found, is_none_waiting=len(told) > 1 and told[0].is_complete)
                return found, await _letters(settings, one, which, found, reach), told
    listed = await _letters(settings, one, which, None, reach)
    if listed.letters and (place := listed.letters[-1].place) is not None:
        topic = listed.letters[-1].headers.get("source-topic", one.topic)
        async with _log(settings, one, topic if topic in counts else one.topic, counts) as log:
            return await log.of_letter(TP(topic, place[0]), place[1], which), listed, told
    return None, listed, told


@asynccontextmanager
async def _log(settings: Settings, one: Subscription, topic: str, counts: Mapping[str, int]) -> AsyncGenerator[EventLog, None]:
    """A topic of the subscriber, open for reading."""
    tps = [TopicPartition(topic, number) for number in range(counts[topic])]
    commits = await committed(settings, one, [TP(*tp) for tp in tps])
    async with log_reader(settings.kafka, topic, range(counts[topic])) as consumer:
        begins = await consumer.beginning_offsets(tps)
        ends = await stable_ends(consumer, tps)
        high = {TP(*tp): offset for tp, offset in (await high_watermarks(consumer, tps)).items()}
        yield EventLog(settings, one, consumer, commits, {TP(*tp): (begins[tp], ends[tp]) for tp in tps}, high)


async def _letters(settings: Settings, one: Subscription, which: str, found: EventFacts | None, reach: Reach) -> Listed:
    """The dead letters of an event, oldest first, with those that its copy has which a replay has put back."""
    mine = Selection(settings.app_id, one.subscriber.name, kind="subscriber")
    if found is None:
        sources = frozenset(() if reach.source is None else {reach.source})
        return await _listed(settings, one, replace(mine, event_ids=frozenset({which}), event_sources=sources), reach)
    if found.timestamp_ms:
        mine = replace(mine, since_ms=max(0, found.timestamp_ms - CLOCKS_APART_MS))
    here = replace(mine, places=frozenset({(found.tp.partition, found.offset)}))
    # What was put back has the same place in another topic, and its letters are in the same one.
    listed = _from(found.tp.topic, await _listed(settings, one, here, reach))
    if found.event_id and any(letter.digest() in listed.put_back for letter in listed.letters):
        again = replace(mine, event_ids=frozenset({found.event_id}))
        later = _from(again_topic(settings.app_id), await _listed(settings, one, again, reach))
        listed = listed._replace(shown=[*listed.shown, *later.shown])
    return listed


async def _listed(settings: Settings, one: Subscription, selection: Selection, reach: Reach) -> Listed:
    try:
        return await letters_of(settings, one.dead_letters, selection, MOST_LETTERS, reach.show)
    except ConfigurationError:
        return Listed([], frozenset(), frozenset(), 0)  # there is no such topic: nothing was ever refused


def _from(topic: str, listed: Listed) -> Listed:
    return listed._replace(shown=[each for each in listed.shown if each.letter.headers.get("source-topic") == topic])


async def _kept(settings: Settings, one: Subscription, found: EventFacts) -> EventFacts:
    """The same with what Redis has of it; that it does not answer is told, and no fault of the command."""
    keys = SubscriberKeys(settings.app_id, one.subscriber.name, *found.tp)
    try:
        async with redis_of(settings) as redis:
            text: Any = await redis.hget(keys.marks[1], str(found.offset))
    except StreamsAppError as error:
        return replace(found, redis_fault=str(error))
    return replace(found, kept=AttemptEntry(*map(int, text.split())) if text else None)


async def _page(settings: Settings) -> Page | None:
    url = usual_url(settings.http)
    return (await pages(settings, [url]))[0] if url else None
