"""Detects topics that were deleted and created again, and truncated logs, by comparing logs with stored positions.

A worker detects this when it claims a partition, and then stops or reads the new log. An operator should know it before a worker
starts. Logs are compared only if the broker has topic ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping
from functools import partial
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from redis.asyncio import Redis

from streams_app.delivery.batch import TP
from streams_app.delivery.fingerprints import common_end, of_text
from streams_app.delivery.log_continuity import (
    Action,
    LogVerdict,
    Policy,
    PresentLog,
    StoredPosition,
    continuity_of,
    explanation,
    is_comparable,
    is_recreated,
)
from streams_app.delivery.offset_metadata import offsets_in
from streams_app.errors import NewerFormatError, StreamsAppError, TryAgainError, check_state_format, text_of
from streams_app.finding import Finding, Level
from streams_app.folding.agents.claim import policy_of as fold_policy
from streams_app.kafka.facts import KafkaFacts
from streams_app.kafka.group_offsets import commits_in, in_group
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.log_reader import log_reader
from streams_app.kafka.one_record import checksum_at
from streams_app.kafka.topic_ids import UNKNOWN
from streams_app.operations.groups import stored_shards
from streams_app.redis_access.client import REDIS_ERRORS, redis_fault_text
from streams_app.requirements.component_findings import kept_positions
from streams_app.requirements.components import inputs_of
from streams_app.requirements.declarations import Declarations
from streams_app.settings import Settings

Read = dict[TP, StoredPosition]


async def log_findings(declarations: Declarations, kafka: KafkaFacts, redis: Redis) -> AsyncGenerator[Finding, None]:
    """Compare topics with the positions that components have stored: yield topics that were created again, and truncated logs.

    If Kafka or Redis does not answer, or hides a topic, at most a warning is yielded. Nothing is yielded if the catalogue cannot be
    used.
    """
    settings, ids = declarations.settings, kafka.ids
    if declarations.fault is not None or kafka.hides_any(inputs_of(declarations.running)):
        return
    try:
        readers = await _readers(declarations, kafka, redis)
        if not {tp.topic for read in readers.values() for tp in read} <= ids.keys():
            return  # the check of Kafka reports the topic that does not exist
        for policy, read in readers.items():
            present = {tp: stored for tp, stored in read.items() if ids.get(tp.topic, UNKNOWN) != UNKNOWN}
            for finding in [*recreations(policy, present, ids)] or await _compared(settings, policy, present, ids):
                yield finding
    except NewerFormatError as error:
        yield Finding(Level.ERROR, str(error), "run that version")
    except StreamsAppError:
        return  # other checks report it
    except (KafkaError, OSError, TimeoutError) as error:
        yield Finding(
            Level.WARNING, f"fingerprints of consumed events cannot be compared with the logs: {text_of(error)}", "check again"
        )


async def _compared(settings: Settings, policy: Policy, read: Read, ids: Mapping[str, str]) -> list[Finding]:
    """Compare the logs of a reader with its stored positions, by the same rule as a claim."""
    found: list[Finding] = []
    for topic in sorted({tp.topic for tp in read}):
        tps = [TopicPartition(*tp) for tp in read if tp.topic == topic]
        async with log_reader(settings.kafka, topic, [tp.partition for tp in tps]) as consumer:
            begins, ends = await consumer.beginning_offsets(tps), await stable_ends(consumer, tps)
            for tp in tps:
                stored = read[TP(*tp)]
                # A client that seeks beyond the end of a log is reset.
                log = PresentLog(ids[topic], begins[tp], ends[tp], was_reset=stored.read_to > ends[tp])
                common = None
                if is_comparable(stored, log.topic_id):
                    common = await common_end(stored.fingerprints, partial(checksum_at, consumer, TP(*tp)))
                found += changes(policy, TP(*tp), stored, log, common)
    if not found and read:
        text = f"{policy.reader} has read the current logs: topics and records match its stored positions ({len(read)} partitions)"
        found.append(Finding(Level.OK, text))
    return found


def recreations(policy: Policy, read: Read, ids: Mapping[str, str]) -> Iterator[Finding]:
    """Yield one finding if a topic was deleted and created again since a component has read it; otherwise nothing (pure)."""
    for tp, stored in read.items():
        if is_recreated(stored.topic_id, ids[tp.topic]):
            yield from changes(policy, tp, stored, PresentLog(ids[tp.topic], 0, stored.read_to), None)
            return


def changes(policy: Policy, tp: TP, stored: StoredPosition, log: PresentLog, common: int | None) -> Iterator[Finding]:
    """Yield a finding if a worker would not continue at the stored position of a partition (pure)."""
    verdict, offset = continuity_of(stored, log, common)
    what = f"{tp} {': '.join(explanation(policy.reader, stored, log, verdict))}"
    action = policy.actions[verdict]
    if action is Action.REJECT:
        yield Finding(Level.ERROR, f"{what}; no worker would read it", policy.advice)
    elif verdict in (LogVerdict.TRUNCATED, LogVerdict.WENT_BACK):
        text = f"{tp} went back: the broker has lost what {policy.reader} had read from offset {offset} to {stored.read_to - 1}"
        advice = f"nothing: a worker reads again from {offset}; find out why the broker lost the events"
        yield Finding(Level.WARNING, text, advice)
    elif action is Action.RESTART:
        yield Finding(Level.WARNING, what, "nothing: a worker reads the new one from its beginning")


async def _readers(declarations: Declarations, kafka: KafkaFacts, redis: Redis) -> dict[Policy, Read]:
    """Return the stored positions, by partition, of each component that reads topics."""
    settings = declarations.settings
    try:
        readers = await _in_redis(declarations, kafka, redis)
    except REDIS_ERRORS as error:
        raise TryAgainError(redis_fault_text(error, settings.redis)) from error
    for component, kept in kept_positions(declarations.running):
        if kept.of_commit is None:
            continue
        tps = kafka.tps_of(component.inputs)
        async with in_group(settings.kafka, component.group) as consumer:
            commits = await commits_in(settings.kafka, consumer, component.group, tps) if tps else {}
        readers[kept.policy(component.name)] = {
            tp: kept.of_commit(positions[component.name])
            for tp, commit in commits.items()
            if (positions := offsets_in(commit)) and component.name in positions
        }
    return readers


async def _in_redis(declarations: Declarations, kafka: KafkaFacts, redis: Redis) -> dict[Policy, Read]:
    """Return the positions, by partition, that Redis stores of each fold and of other components."""
    settings = declarations.settings
    readers: dict[Policy, Read] = defaultdict(dict)
    for shard in await stored_shards(redis, settings, None):
        topic_id, log, to = await redis.hmget(shard.keys.meta, ["topic_id", "log", "to"])
        readers[fold_policy(shard.fold.name)][TP(shard.fold.source, shard.partition)] = StoredPosition(
            max(shard.fence, int(to or -1)) + 1, _text(topic_id), of_text(_text(log))
        )
    for component, kept in kept_positions(declarations.running):
        if kept.meta is None:
            continue
        for tp in kafka.tps_of(component.inputs):
            meta = kept.meta(settings.app_id, component.name, *tp)
            stored: list[Any] = await redis.hmget(meta, ["topic_id", "log", "fence", "format"])
            topic_id, log, fence, stored_format = stored
            check_state_format(f"{meta} in Redis", stored_format)
            if fence is not None:
                readers[kept.policy(component.name)][tp] = StoredPosition(int(fence) + 1, _text(topic_id), of_text(_text(log)))
    return readers


def _text(value: Any) -> str:
    return (value or b"").decode()
