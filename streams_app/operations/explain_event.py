"""Explains the state of one event of a subscriber: searches its topics for the event, and collects facts from Kafka and Redis."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Any, Final, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams_app.clock import Clock
from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import check_format, offsets_of
from streams_app.errors import BadEventError, ConfigurationError, StreamsAppError
from streams_app.events.codec import event_id
from streams_app.events.declaration import Event
from streams_app.events.headers import TYPE, Headers, header, source_of
from streams_app.events.unwrapping import attributes_of
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.log_ends import high_watermarks, offsets_at, stable_ends
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.operations.dead_letter import DeadLetterSelection
from streams_app.operations.dead_letters import DeadLetterListing, read_dead_letters
from streams_app.operations.event_facts import EventExplanation, EventFacts, FoldedEventState, SearchedOffsets, explanation_of
from streams_app.operations.explain_folded import explain_folded_event
from streams_app.operations.groups import redis_of
from streams_app.operations.worker_pages import Page, pages, usual_url
from streams_app.settings import Settings
from streams_app.subscribers.declaration.replayed_event import is_replay_for, parse_replay, replay_topic
from streams_app.subscribers.declaration.subscriber import Records
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.state.initial_offsets import committed
from streams_app.subscribers.state.keys import SubscriberKeys
from streams_app.subscribers.state.offset_metadata import decoded
from streams_app.subscribers.state.store import AttemptEntry

Ranges: TypeAlias = Mapping[TP, tuple[int, int]]
"""Range of offsets of each partition: the first offset, and the offset after the last one."""


@dataclass(frozen=True, slots=True)
class SearchScope:
    """Limits of a search for an event by its id.

    Attributes:
        since_ms: Time from which finished events are searched as well; None: only unfinished events are searched.
        max_offsets: Maximum number of offsets to search; unfinished events are searched first.
        show: Called with a message, the number of records searched so far, and the number of offsets to search.
        source: The ``ce_source`` of the event, because event ids are unique only within a source. None: any source.
    """

    since_ms: int | None
    max_offsets: int
    show: Callable[[str, int, int | None], None] = lambda words, done, total: None
    source: str | None = None


def size_of(ranges: Ranges) -> int:
    """Return the total number of offsets in ranges (pure)."""
    return sum(end - begin for begin, end in ranges.values())


def first_of(ranges: Ranges, max_offsets: int) -> dict[TP, tuple[int, int]]:
    """Shorten the range of each partition to its first offsets (pure).

    The partitions share ``max_offsets`` equally; what a shorter range leaves is given to the others.
    """
    return {tp: (ranges[tp][0], ranges[tp][0] + share) for tp, share in _shares(ranges, max_offsets).items()}


def last_of(ranges: Ranges, max_offsets: int) -> dict[TP, tuple[int, int]]:
    """Shorten the range of each partition to its last offsets; ``max_offsets`` is shared as in :func:`first_of` (pure)."""
    return {tp: (ranges[tp][1] - share, ranges[tp][1]) for tp, share in _shares(ranges, max_offsets).items()}


def _shares(ranges: Ranges, max_offsets: int) -> dict[TP, int]:
    shares: dict[TP, int] = {}
    for tp, (begin, end) in sorted(ranges.items(), key=lambda found: found[1][1] - found[1][0]):
        share = min(end - begin, max(0, max_offsets - sum(shares.values())) // (len(ranges) - len(shares)))
        shares[tp] = share
    return shares


class EventLog:
    """Finds events in one topic of a subscriber, with their facts from the log and from the commits of the consumer group."""

    def __init__(
        self,
        settings: Settings,
        one: Subscription,
        consumer: AIOKafkaConsumer,
        commits: Mapping[TP, PartitionCommit],
        log_bounds: Ranges,
        high: Mapping[TP, int],
    ) -> None:
        """``consumer`` is from :func:`.log_reader.log_reader`, and assigned to all partitions of the topic."""
        self._settings = settings
        self._one = one
        self._consumer = consumer
        for tp, commit in commits.items():
            check_format(tp, commit.metadata)
        self._committed = {
            tp: position
            for tp, commit in commits.items()
            if (position := offsets_of(commit, [one.subscriber.name]).get(one.subscriber.name))
        }
        self._log_bounds = log_bounds
        self._high = high
        self._replay_topic = replay_topic(settings.app_id)

    async def at(self, tp: TP, offset: int) -> EventFacts:
        """Return the facts about an offset, even if the log has no record there."""
        if tp not in self._log_bounds:
            raise ConfigurationError([f"topic {tp.topic!r} has partitions 0 to {len(self._log_bounds) - 1}, not {tp.partition}"])
        begin, end = self._log_bounds[tp]
        if begin <= offset < end:
            async with aclosing(self._read({tp: (offset, offset + 1)})) as read:
                async for record in (record async for batch in read for record in batch.records):
                    return self._found(tp, offset, record)
        return self._found(tp, offset)

    async def with_id(self, wanted: str, scope: SearchScope) -> tuple[EventFacts | None, SearchedOffsets, list[EventFacts]]:
        """Search for an event by its id. Unfinished events are searched first.

        Returns:
            The facts about the first match, or None if there is no match; the offsets of the search; and, without a match, the
            facts about the newest searched events whose record key is the wanted text, newest first.
        """
        above = {tp: (self._from(tp), end) for tp, (_, end) in self._log_bounds.items()}
        at = {} if scope.since_ms is None else await self._offsets_at(scope.since_ms)
        below = {tp: (min(at.get(tp, begin), begin), begin) for tp, (begin, _) in above.items()}
        first = first_of(above, scope.max_offsets)
        last = last_of(below, scope.max_offsets - size_of(first))
        topic = next(iter(self._log_bounds)).topic
        unseen = size_of(above) + size_of(below) - size_of(first) - size_of(last)
        searched = SearchedOffsets(topic, size_of(first), size_of(last), scope.since_ms, unseen, is_complete=first == above)
        done, of, key = 0, searched.above + searched.below, os.fsencode(wanted)
        newest: list[tuple[TP, Any]] = []
        for ranges in (first, last):
            async with aclosing(self._read(ranges)) as read:
                async for batch in read:
                    found = next(
                        (record for record in batch.records if self._is_wanted(batch.tp, record, wanted, scope.source)), None
                    )
                    if found is not None:
                        return self._found(batch.tp, found.offset, found), searched, []
                    of_key = [(batch.tp, record) for record in batch.records if record.key == key]
                    newest = nlargest(MAX_OF_KEY, [*newest, *of_key], key=lambda one: (one[1].timestamp, one[1].offset))
                    done += len(batch.records)
                    scope.show(f"{done:,} records of {topic} searched", min(done, of), of)
        facts = [self._found(tp, record.offset, record) for tp, record in newest]
        return None, searched, [one for one in facts if one.is_ours]

    @property
    def hidden(self) -> dict[TP, tuple[int, int]]:
        """Ranges of offsets that open transactions hide; partitions without an open transaction are omitted."""
        return {tp: (end, self._high[tp]) for tp, (_, end) in self._log_bounds.items() if self._high[tp] > end}

    async def hidden_with_id(self, consumer: AIOKafkaConsumer, wanted: str, scope: SearchScope) -> EventFacts | None:
        """Return the facts about the first event with an id among those that open transactions hide, or None.

        Args:
            consumer: A consumer from :func:`.log_reader.log_reader` that also reads uncommitted records.
            scope: Limits of the search; its ``since_ms`` has no effect.
        """
        async with aclosing(read_ranges(consumer, first_of(self.hidden, scope.max_offsets))) as read:
            async for batch in read:
                for record in batch.records:
                    if self._is_wanted(batch.tp, record, wanted, scope.source):
                        return self._found(batch.tp, record.offset, record)
        return None

    async def of_dead_letter(self, tp: TP, offset: int, wanted: str) -> EventFacts:
        """Return the facts about an event that became a dead letter, even if retention has removed the event from its topic."""
        begin, end = self._log_bounds.get(tp, (0, 0))
        if offset < end:
            return replace(await self.at(tp, offset), event_id=wanted)
        return EventFacts(tp, offset, begin, offset + 1, committed=self._committed.get(tp), event_id=wanted)

    def _from(self, tp: TP) -> int:
        """Return the offset from which events of a partition may be unfinished: the later of committed offset and log start."""
        position = self._committed.get(tp)
        return max(self._log_bounds[tp][0], 0 if position is None else position.offset)

    async def _offsets_at(self, time_ms: int) -> dict[TP, int]:
        ends = {TopicPartition(*tp): end for tp, (_, end) in self._log_bounds.items()}
        return {TP(*tp): offset for tp, offset in (await offsets_at(self._consumer, ends, time_ms)).items()}

    def _read(self, ranges: Ranges) -> AsyncGenerator[Batch, None]:
        self._consumer.resume(*(TopicPartition(*tp) for tp in self._log_bounds))  # an earlier read paused them
        return read_ranges(self._consumer, ranges)

    def _is_wanted(self, tp: TP, record: Any, wanted: str, source: str | None) -> bool:
        if source is not None and source_of(self._attributes(record)) != os.fsencode(source):
            return False
        return self._id(tp, record) == wanted and (tp.topic != self._replay_topic or self._is_ours(tp, record.headers, ""))

    def _id(self, tp: TP, record: Any) -> str:
        """Return the id of an event; for a replayed event, the id of the original event."""
        headers, position = self._attributes(record), (tp.topic, tp.partition, record.offset)
        if tp.topic == self._replay_topic and (was := parse_replay(headers)) is not None:
            origin, headers = was
            position = (origin.tp.topic, origin.tp.partition, origin.offset)
        try:
            return event_id(headers, self._settings.limits, *position)
        except BadEventError:
            return ":".join(map(str, position))

    def _found(self, tp: TP, offset: int, record: Any = None) -> EventFacts:
        begin, end = self._log_bounds[tp]
        position = self._committed.get(tp)
        metadata = None if position is None else decoded(position.metadata, position.offset, end)
        if record is None:
            return EventFacts(tp, offset, begin, end, self._high[tp], position, metadata)
        event_type = "" if tp.topic == self._replay_topic else header(self._attributes(record), TYPE) or ""
        is_ours = self._is_ours(tp, record.headers, event_type)
        return EventFacts(
            tp, offset, begin, end, self._high[tp], position, metadata, self._id(tp, record), event_type, record.timestamp, is_ours
        )

    def _attributes(self, record: Any) -> Headers:
        """Return the headers of an event. If it is a CloudEvent in structured mode, add its attributes, which are in the value."""
        source = self._one.subscriber.source
        return attributes_of(source.format, record.headers, record.value) if isinstance(source, Event) else record.headers

    def _is_ours(self, tp: TP, headers: Any, event_type: str) -> bool:
        if tp.topic == self._replay_topic:
            return is_replay_for(self._one.subscriber.name, headers)
        return not isinstance(self._one.subscriber.source, Event) or event_type in ("", self._one.subscriber.source.key)


POSITION: Final = re.compile(r"([a-zA-Z0-9._-]{1,249}):(\d{1,9}):(\d{1,18})", re.ASCII)
MAX_DEAD_LETTERS: Final = 10
MAX_OF_KEY: Final = 5
"""Maximum number of events of a record key that are explained."""

CLOCKS_APART_MS: Final = 3_600_000
"""Assumed maximum clock skew: the timestamp of a record may be this much later than that of its dead letter."""


async def explain_event(
    settings: Settings, one: Subscription, which: str, clock: Clock, scope: SearchScope
) -> EventExplanation | FoldedEventState:
    """Collect what is known of one event of one subscriber, or of the newest events of a record key.

    Args:
        settings: The broker has to answer. Redis and the schema registry have to answer only for an event of a fold's source.
        which: Id of the event, or TOPIC:PARTITION:OFFSET; or a record key.

    Raises:
        ConfigurationError: Also if ``which`` names a topic that is neither read by the subscriber nor the source of the fold whose
            records the subscriber reads.
    """
    topics = [one.topic, replay_topic(settings.app_id)]
    position = POSITION.fullmatch(which)
    source = one.subscriber.source
    if isinstance(source, Records) and position is not None and position[1] == settings.fold(source.fold).source:
        return await explain_folded_event(settings, settings.fold(source.fold), int(position[2]), int(position[3]))
    if position is not None and position[1] not in topics:
        raise ConfigurationError([f"subscriber {one.subscriber.name!r} reads {' and '.join(topics)}, not {position[1]}"])
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, topics)
    if (wanted := one.topic if position is None else position[1]) not in counts:
        raise ConfigurationError([f"topic {wanted!r} does not exist: create it with `streams-app topics create`"])
    if position is None:
        found, listed, searched, of_key = await _searched(settings, one, which, counts, scope)
    else:
        async with _log(settings, one, position[1], counts) as log:
            found, searched, of_key = await log.at(TP(position[1], int(position[2])), int(position[3])), [], []
        listed = await _dead_letters(settings, one, which, found, scope)
    page = await _page(settings)
    if found is None and of_key:
        facts = await _of_key(settings, one, of_key, scope)
        return explanation_of(which, one, facts, searched, page, clock.now_ms(), is_key=True)
    if found is None:
        return explanation_of(which, one, [], searched, page, clock.now_ms())
    found = await _kept(settings, one, replace(found, dead_letters=tuple(listed.dead_letters), replayed=listed.replayed))
    return explanation_of(which, one, [found], searched, page, clock.now_ms())


async def _searched(
    settings: Settings, one: Subscription, which: str, counts: Mapping[str, int], scope: SearchScope
) -> tuple[EventFacts | None, DeadLetterListing, list[SearchedOffsets], list[EventFacts]]:
    """Search for an id among replayed events, then in the subscriber's topic, then in its dead letters.

    Returns:
        The facts about the event, or None if it was not found; its dead letters; the offsets of the search, for each topic; and the
        facts about the newest events with this record key, newest first.
    """
    searches: list[SearchedOffsets] = []
    of_key: list[EventFacts] = []
    for topic, far in ((replay_topic(settings.app_id), replace(scope, since_ms=None)), (one.topic, scope)):
        if topic not in counts:
            continue
        async with _log(settings, one, topic, counts) as log:
            found, searched, newest = await log.with_id(which, far)
            searches.append(searched)
            of_key = nlargest(MAX_OF_KEY, [*of_key, *newest], key=lambda one: one.timestamp_ms)
            if found is None and log.hidden:
                async with log_reader(settings.kafka, topic, range(counts[topic]), isolation="read_uncommitted") as reader:
                    found = await log.hidden_with_id(reader, which, far)
            if found is not None:
                found = replace(found, is_none_waiting=len(searches) > 1 and searches[0].is_complete)
                return found, await _dead_letters(settings, one, which, found, scope), searches, []
    listed = await _dead_letters(settings, one, which, None, scope)
    if listed.dead_letters and (position := listed.dead_letters[-1].position) is not None:
        topic = listed.dead_letters[-1].headers.get("source-topic", one.topic)
        async with _log(settings, one, topic if topic in counts else one.topic, counts) as log:
            return await log.of_dead_letter(TP(topic, position[0]), position[1], which), listed, searches, []
    return None, listed, searches, of_key


@asynccontextmanager
async def _log(settings: Settings, one: Subscription, topic: str, counts: Mapping[str, int]) -> AsyncGenerator[EventLog, None]:
    """Open one topic as an :class:`EventLog`, for an ``async with`` block; ``counts`` is the partition count of each topic."""
    tps = [TopicPartition(topic, number) for number in range(counts[topic])]
    commits = await committed(settings, one, [TP(*tp) for tp in tps])
    async with log_reader(settings.kafka, topic, range(counts[topic])) as consumer:
        begins = await consumer.beginning_offsets(tps)
        ends = await stable_ends(consumer, tps)
        high = {TP(*tp): offset for tp, offset in (await high_watermarks(consumer, tps)).items()}
        yield EventLog(settings, one, consumer, commits, {TP(*tp): (begins[tp], ends[tp]) for tp in tps}, high)


async def _dead_letters(
    settings: Settings, one: Subscription, which: str, found: EventFacts | None, scope: SearchScope
) -> DeadLetterListing:
    """Return the dead letters of an event and of its replayed copies. If the event was not found, search by the id ``which``."""
    mine = DeadLetterSelection(settings.app_id, one.subscriber.name, kind="subscriber")
    if found is None:
        sources = frozenset(() if scope.source is None else {scope.source})
        return await _listed(settings, one, replace(mine, event_ids=frozenset({which}), event_sources=sources), scope)
    if found.timestamp_ms:
        mine = replace(mine, since_ms=max(0, found.timestamp_ms - CLOCKS_APART_MS))
    here = replace(mine, positions=frozenset({(found.tp.partition, found.offset)}))
    # The selection knows no topic, and a replayed event may have the same partition and offset in the replay topic.
    listed = _from(found.tp.topic, await _listed(settings, one, here, scope))
    if found.event_id and any(dead_letter.digest() in listed.replayed for dead_letter in listed.dead_letters):
        repeated = replace(mine, event_ids=frozenset({found.event_id}))
        later = _from(replay_topic(settings.app_id), await _listed(settings, one, repeated, scope))
        listed = listed._replace(shown=[*listed.shown, *later.shown])
    return listed


async def _of_key(settings: Settings, one: Subscription, found: Sequence[EventFacts], scope: SearchScope) -> list[EventFacts]:
    """Add dead letters and stored attempts to the facts about several events."""
    mine = DeadLetterSelection(settings.app_id, one.subscriber.name, kind="subscriber")
    oldest_ms = min(each.timestamp_ms for each in found)
    positions = frozenset((each.tp.partition, each.offset) for each in found)
    selection = replace(mine, since_ms=max(0, oldest_ms - CLOCKS_APART_MS), positions=positions)
    listed = await _listed(settings, one, selection, scope)
    facts = []
    for each in found:
        dead_letters = tuple(
            dead_letter for dead_letter in _from(each.tp.topic, listed).dead_letters
            if dead_letter.position == (each.tp.partition, each.offset)
        )  # fmt: skip
        facts.append(await _kept(settings, one, replace(each, dead_letters=dead_letters, replayed=listed.replayed)))
    return facts


async def _listed(settings: Settings, one: Subscription, selection: DeadLetterSelection, scope: SearchScope) -> DeadLetterListing:
    try:
        return await read_dead_letters(settings, one.dead_letters, selection, MAX_DEAD_LETTERS, scope.show)
    except ConfigurationError:
        return DeadLetterListing([], frozenset(), frozenset(), 0)  # without the topic, no event was ever rejected


def _from(topic: str, listed: DeadLetterListing) -> DeadLetterListing:
    return listed._replace(shown=[each for each in listed.shown if each.dead_letter.headers.get("source-topic") == topic])


async def _kept(settings: Settings, one: Subscription, found: EventFacts) -> EventFacts:
    """Add the stored attempts of the event to its facts. If Redis does not answer, add the error instead."""
    keys = SubscriberKeys(settings.app_id, one.subscriber.name, *found.tp)
    try:
        async with redis_of(settings) as redis:
            text: Any = await redis.hget(keys.state[1], str(found.offset))
    except StreamsAppError as error:
        return replace(found, redis_fault=str(error))
    return replace(found, kept=AttemptEntry(*map(int, text.split())) if text else None)


async def _page(settings: Settings) -> Page | None:
    url = usual_url(settings.http)
    return (await pages(settings, [url]))[0] if url else None
