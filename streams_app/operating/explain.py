"""Why has this group not been emitted? One paragraph, from Redis and the broker; nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.codec import TEXT_MARK, member_of
from streams_app.errors import BadEventError, ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.core.record import Sealed
from streams_app.folding.store.codec import INFO_FIELD
from streams_app.kafka.admin import ANSWER_SECONDS
from streams_app.kafka.client import client_options
from streams_app.operating.groups import Place, places_of, redis_of, rows_of
from streams_app.operating.text import escaped, shown, shown_key
from streams_app.settings import Settings
from streams_app.words import counted, span, time_text

SHOWN_NAMES = 8
STANDS_STILL_MS = 10_000
"""A partition clock further behind the wall clock than this is worth a word."""

SCAN_OUTBOX = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    """A group in a shard.

    Attributes:
        place: The shard.
        member: Member bytes of the group, as Redis has them.
        row: Its row, see :func:`streams_app.operating.groups.rows_of`; None where it is not open.
        names: Some of its changed names.
        waiting: Number of its records in the outbox.
    """

    place: Place
    member: bytes
    row: Mapping[str, Any] | None
    names: tuple[str, ...]
    waiting: int


def members_of(group: str) -> list[bytes]:
    """The members in Redis of the groups that a person may mean by what was typed.

    Text in quotes means the text within them, as ``groups list`` shows it. Anything else means that text itself, or the JSON that
    it is (``1``, ``["a",1]``).
    """
    typed = group.encode("utf-8", "surrogateescape")  # as the arguments of a process come
    try:
        value = orjson.loads(typed)
    except orjson.JSONDecodeError:
        return [TEXT_MARK + typed]
    if type(value) is str:
        return [member_of((value,))]
    members = [TEXT_MARK + typed]
    if type(value) in (int, float, bool) or (type(value) is list and len(value) > 1):
        with suppress(BadEventError):  # no group is called so
            members.append(member_of(tuple(value) if type(value) is list else (value,)))
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
            names = sorted(name.decode("utf-8", "backslashreplace") for name in fields if name != INFO_FIELD)
            found.append(Found(place, member, rows[0] if rows else None, tuple(names), waiting.get(member, 0)))
    return found


async def _waiting(redis: Redis, place: Place) -> dict[bytes, int]:
    packed: Any = await redis.zrange(place.keys.outbox, 0, SCAN_OUTBOX - 1)
    counts: dict[bytes, int] = {}
    for entry in packed:
        member = Sealed.unpack(entry).member
        counts[member] = counts.get(member, 0) + 1
    return counts


async def explain(settings: Settings, fold: Fold, group: str, clock: Clock) -> str:
    """Says in one paragraph why a group of a fold has not been emitted.

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
                f"{escaped(group)} is not open in any of the {len(places)} partitions of fold {fold.name}, and nothing of it waits "
                "to be sent: no event of it was folded since its last record. Look for its events in "
                f"{fold.source} (are they keyed by the group?), in {fold.dead_letters}, and at streams_app_lag_events: they may "
                "not have been folded yet."
            )
        metas: list[Any] = [await redis.hgetall(each.place.keys.meta) for each in found]
    ends = await asyncio.gather(*[_end(settings, each.place) for each in found])
    return "\n\n".join(describe(each, fold, meta, end, clock.now_ms()) for each, meta, end in zip(found, metas, ends, strict=True))


async def _end(settings: Settings, place: Place) -> int | None:
    """End of a partition as a worker may read it; None where the broker does not tell, or not in time."""
    tp = TopicPartition(place.fold.source, place.partition)
    consumer = AIOKafkaConsumer(
        **client_options(settings.kafka), isolation_level="read_committed", request_timeout_ms=int(ANSWER_SECONDS * 1_000)
    )
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await consumer.start()
            return int((await consumer.end_offsets([tp]))[tp])
    except (KafkaError, OSError, TimeoutError):
        return None
    finally:
        await consumer.stop()


def describe(found: Found, fold: Fold, meta: Mapping[bytes, bytes], end: int | None, now_ms: int) -> str:
    """The paragraph about one group in one shard (pure).

    Args:
        found: The group.
        fold: Its declaration.
        meta: Hash ``meta`` of the shard.
        end: End of the partition; None: not known.
        now_ms: Wall clock.
    """
    fence = int(meta.get(b"fence", b"-1"))
    owner = escaped(meta.get(b"owner", b"").decode("utf-8", "backslashreplace")) or "an unknown worker"
    sentences = _open_sentences(found, fold, now_ms) if found.row is not None else []
    if found.waiting:
        waits = f"{counted(found.waiting, 'record')} of it left the open state, waiting in the outbox"
        sentences.append(f"{waits} for the broker to acknowledge on {fold.output}.")
    else:
        sentences.append("Nothing of it waits in the outbox.")
    lag = None if end is None else max(0, end - fence - 1)
    if lag is None:
        sentences.append(f"The partition is folded up to offset {fence}; the broker does not say where it ends.")
    elif lag:
        sentences.append(f"The partition is folded up to offset {fence}, {counted(lag, 'event')} behind its end.")
    else:
        sentences.append(f"The partition is folded to its end (offset {fence}, lag 0).")
    sentences.append(_clock_sentence(found.place, fold, lag, now_ms))
    sentences.append(f"Last claimed by {owner}.")
    return " ".join(sentences)


def _clock_sentence(place: Place, fold: Fold, lag: int | None, now_ms: int) -> str:
    """Where the partition clock stands, and why it may stand still."""
    behind_ms = now_ms - place.clock_ms
    text = f"The partition clock, by which all this is reckoned, stands at {time_text(place.clock_ms)}"
    if behind_ms <= -STANDS_STILL_MS:
        return (
            f"{text}, {span(-behind_ms)} ahead of the wall clock: a worker whose clock was wrong left it so. It never goes back; "
            "silence and holds count on when the wall clock gets there."
        )
    if behind_ms < STANDS_STILL_MS:
        return f"{text}, with the wall clock."
    text += f", {span(behind_ms)} behind the wall clock: "
    if lag:
        text += "while a worker catches up, time is that of the events"
        if fold.backlog == "merge" and behind_ms >= fold.quiet_period_ms:
            text += ", and silence closes nothing (backlog = merge)"
        return text + "; if it does not move, no worker runs."
    return text + "no worker moves it. Is one running, and ready (/health/ready)?"


def _open_sentences(found: Found, fold: Fold, now_ms: int) -> list[str]:
    row = found.row
    assert row is not None  # asked by the caller
    quiet, hold = row["quiet_in_ms"], row["hold_in_ms"]
    names = ", ".join(map(shown, found.names[:SHOWN_NAMES])) + (", ..." if len(found.names) > SHOWN_NAMES else "")
    text = (
        f"{shown_key(row['key'])} of fold {fold.name} is open in {found.place}: {counted(row['events'], 'event')} at offsets "
        f"{row['first_offset']} to {row['last_offset']}, {counted(row['names'], 'changed name')} ({names}); "
        f"the last event is of {time_text(row['last_event_ms'])}."
    )
    if min(quiet, hold) <= 0:
        return [text, "It is due and leaves with the next pass of its worker; if it does not, see /health/ready of the worker."]
    first = "silence comes first" if quiet < hold else "the hold comes first"
    clock_ms = found.place.clock_ms
    # A clock that is ahead stands still until then: see below.
    ahead_ms = clock_ms - now_ms if clock_ms - now_ms >= STANDS_STILL_MS else 0
    quiet_span, hold_span = span(quiet + ahead_ms), span(hold + ahead_ms)
    bounds = [
        f"It is due once it has been quiet for {span(fold.quiet_period_ms)}: in {quiet_span} if no event comes "
        f"({time_text(clock_ms + quiet)}); and at the latest when it has been open for {span(fold.max_hold_ms)}: in {hold_span} "
        f"({time_text(clock_ms + hold)}); as it stands, {first}."
    ]
    if fold.max_events:
        bounds.append(f"{counted(fold.max_events - row['events'], 'more event')} would close it at once.")
    if row["names"] >= fold.max_changed // 2:
        bounds.append(f"{counted(fold.max_changed - row['names'], 'more name')} can be taken, then it is closed.")
    return [text, *bounds]
