"""Why has this group not been emitted? One paragraph, from Redis and the broker; nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from redis.asyncio import Redis

from streams_app.codec import JSON_MARK, TEXT_MARK
from streams_app.errors import ConfigurationError
from streams_app.folding.definition import Fold
from streams_app.folding.keys import INFO_FIELD
from streams_app.folding.record import Sealed
from streams_app.kafka.client import client_options
from streams_app.operating.groups import Place, places_of, redis_of, rows_of
from streams_app.settings import Settings

SHOWN_NAMES = 8
SCAN_OUTBOX = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    """A group in a shard.

    Attributes:
        place: The shard.
        member: Its name in Redis.
        row: As :func:`streams_app.operating.groups.rows_of`; None where it is not open.
        names: Some of its changed names.
        waiting: Its records in the outbox.
    """

    place: Place
    member: bytes
    row: Mapping[str, Any] | None
    names: tuple[str, ...]
    waiting: int


def members_of(group: str) -> list[bytes]:
    """What a group may be called in Redis that is typed as ``group``: text first, then the JSON it may be (``1``, ``["a",1]``)."""
    members = [TEXT_MARK + group.encode()]
    try:
        value = orjson.loads(group)
    except orjson.JSONDecodeError:
        return members
    if type(value) in (int, float, bool, list):
        members.append(JSON_MARK + orjson.dumps(value))
    return members


async def find(redis: Redis, places: list[Place], group: str) -> list[Found]:
    """Every shard in which a group is open or waits in the outbox."""
    found = []
    for place in places:
        waiting = await _waiting(redis, place)
        for member in members_of(group):
            score: Any = await redis.zscore(place.keys.due, member)
            rows = await rows_of(redis, place, [(member, score)]) if score is not None else []
            if not rows and member not in waiting:
                continue
            fields: Any = await redis.hkeys(place.keys.group_prefix + member.decode("utf-8", "surrogateescape"))
            names = sorted(name.decode() for name in fields if name != INFO_FIELD)
            found.append(Found(place, member, rows[0] if rows else None, tuple(names), waiting.get(member, 0)))
    return found


async def _waiting(redis: Redis, place: Place) -> dict[bytes, int]:
    packed: Any = await redis.zrange(place.keys.outbox, 0, SCAN_OUTBOX - 1)
    counts: dict[bytes, int] = {}
    for entry in packed:
        member = Sealed.unpack(entry).member
        counts[member] = counts.get(member, 0) + 1
    return counts


async def explain(settings: Settings, fold: Fold, group: str) -> str:
    """One paragraph about one group of one fold.

    Raises:
        TryAgainError: Redis does not answer.
        ConfigurationError: No partition of the fold has any state: nothing was ever folded.
    """
    async with redis_of(settings) as redis:
        places = await places_of(redis, settings, fold.name)
        if not places:
            raise ConfigurationError([f"fold {fold.name!r} has no state in Redis: no worker has ever claimed a partition of it"])
        found = await find(redis, places, group)
        if not found:
            return (
                f"{group} is not open in any of the {len(places)} partitions of fold {fold.name}, and nothing of it waits to be "
                f"sent: no event of it was folded since its last record. Look for its events in {fold.source} (are they keyed by "
                f"the group?), in {fold.dead_letters}, and at streams_app_lag_events: they may not have been folded yet."
            )
        metas: list[Any] = [await redis.hgetall(each.place.keys.meta) for each in found]
    paragraphs = []
    for each, meta in zip(found, metas, strict=True):
        end = await _end(settings, each.place)
        paragraphs.append(describe(each, fold, meta, end))
    return "\n\n".join(paragraphs)


async def _end(settings: Settings, place: Place) -> int | None:
    """End of a partition as a worker may read it; None where the broker does not tell."""
    tp = TopicPartition(place.fold.source, place.partition)
    consumer = AIOKafkaConsumer(**client_options(settings.kafka), isolation_level="read_committed")
    try:
        await consumer.start()
        return int((await consumer.end_offsets([tp]))[tp])
    except (KafkaError, OSError, TimeoutError):
        return None
    finally:
        await consumer.stop()


def describe(found: Found, fold: Fold, meta: Mapping[bytes, bytes], end: int | None) -> str:
    """What a tired person should read (pure).

    Args:
        found: The group.
        fold: Its declaration.
        meta: Hash ``meta`` of the shard.
        end: End of the partition; None = unknown.
    """
    fence = int(meta.get(b"fence", b"-1"))
    owner = meta.get(b"owner", b"").decode() or "an unknown worker"
    sentences = _open_sentences(found, fold) if found.row is not None else []
    if found.waiting:
        records = "one record" if found.waiting == 1 else f"{found.waiting} records"
        sentences.append(f"{records} of it left the open state and waits for the broker to acknowledge it on {fold.output}.")
    if end is None:
        sentences.append(f"The partition is folded up to offset {fence}; the broker does not say where it ends.")
    elif end - fence - 1 > 0:
        merging = ", and quiet groups stay open" if fold.backlog == "merge" else ""
        sentences.append(
            f"The partition is folded up to offset {fence}, {end - fence - 1} events behind its end: "
            f"while a worker catches up, time is that of the events{merging}."
        )
    else:
        sentences.append(f"The partition is folded to its end (offset {fence}).")
    sentences.append(f"Last claimed by {owner}.")
    return " ".join(sentences)


def _open_sentences(found: Found, fold: Fold) -> list[str]:
    row = found.row
    assert row is not None  # asked by the caller
    quiet, hold = row["quiet_in_ms"], row["hold_in_ms"]
    names = ", ".join(found.names[:SHOWN_NAMES]) + (", ..." if len(found.names) > SHOWN_NAMES else "")
    text = (
        f"{row['group']} of fold {fold.name} is open in {found.place}: {row['events']} events at offsets {row['first_offset']} to "
        f"{row['last_offset']}, {row['names']} changed names ({names})."
    )
    if min(quiet, hold) <= 0:
        return [text, "It is due and leaves with the next pass of its worker; if it does not, see /health/ready of the worker."]
    first = "silence comes first" if quiet < hold else "the hold comes first"
    bounds = [
        f"It is due once it has been quiet for {span(fold.quiet_period_ms)}: in {span(quiet)} if no event comes; "
        f"and at the latest when it has been open for {span(fold.max_hold_ms)}: in {span(hold)}; as it stands, {first}."
    ]
    if fold.max_events:
        bounds.append(f"{fold.max_events - row['events']} more events would close it at once.")
    if row["names"] >= fold.max_changed // 2:
        bounds.append(f"{fold.max_changed - row['names']} more names are taken, then it is closed.")
    return [text, *bounds]


def span(span_ms: int) -> str:
    """``1.5 s``, ``2 min 30 s``, ``5 h 40 min``; ``due`` where nothing is left."""
    if span_ms <= 0:
        return "due"
    seconds, minute, hour = span_ms / 1000, 60, 3_600
    if seconds < minute:
        return f"{seconds:.1f} s"
    if seconds < hour:
        return f"{int(seconds) // minute} min {int(seconds) % minute} s"
    return f"{int(seconds) // hour} h {int(seconds) % hour // minute} min"
