"""What has been folded against the logs that are there: a topic that was deleted and made again.

A worker finds out at its claim and refuses; whoever looks before it starts should know, too. Logs are compared only where the
broker gives topics an id: the ends that the embedded broker names are not those of its logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from aiokafka.errors import KafkaError

from streams_app.checking.finding import Finding, Level
from streams_app.delivery.batch import TP
from streams_app.errors import StreamsAppError, text_of
from streams_app.kafka.admin import ANSWER_SECONDS, admin_client, partition_counts
from streams_app.kafka.source_ends import SourceEnds
from streams_app.kafka.topic_ids import UNKNOWN, topic_ids
from streams_app.operating.groups import Place, places_of, redis_of
from streams_app.settings import Settings


async def log_findings(settings: Settings) -> AsyncGenerator[Finding, None]:
    """Compares ids of topics, and fences with the ends of the logs; nothing, where Kafka or Redis cannot be asked."""
    try:
        async with redis_of(settings) as redis:
            places = await places_of(redis, settings, None)
            told: dict[Place, Any] = {place: await redis.hget(place.keys.meta, "topic_id") for place in places}
        async with admin_client(settings.kafka) as client:
            sources = list(await partition_counts(client, settings.sources))
            ids = await topic_ids(client._client, sources)
            ends = await _ends(settings, sources)
    except StreamsAppError:
        return  # a finding of its own says so already
    except (KafkaError, OSError, TimeoutError) as error:
        yield Finding(Level.WARNING, f"what has been folded cannot be compared with the logs: {text_of(error)}", "check again")
        return
    for fold in settings.folds:
        mine = {place: (told[place] or b"").decode() for place in places if place.fold is fold}
        fault = _fault(mine, ids.get(fold.source, UNKNOWN), ends)
        if fault is not None:
            yield Finding(Level.ERROR, fault, f"streams-app reset --fold {fold.name} (it says first what it would do)")
        elif mine and ids.get(fold.source, UNKNOWN) != UNKNOWN:
            yield Finding(
                Level.OK, f"fold {fold.name} has folded the logs that are there ({len(mine)} of its partitions have state)"
            )


def _fault(folded: Mapping[Place, str], topic_id: str, ends: Mapping[TP, int]) -> str | None:
    """Says that a fold has folded another log than the one that is there (pure); None: it has not, or the broker gives no ids."""
    if topic_id == UNKNOWN:
        return None
    for place, former in folded.items():
        end = ends.get(TP(place.fold.source, place.partition))
        if former not in (UNKNOWN, topic_id) or (end is not None and place.fence + 1 > end):
            return (
                f"{place} was deleted and made again: fold {place.fold.name} has folded another log of that name, "
                f"up to offset {place.fence}; a worker would refuse to start"
            )
    return None


async def _ends(settings: Settings, topics: Sequence[str]) -> dict[TP, int]:
    """Ends of the partitions of topics, as a worker may read them."""
    asked = SourceEnds(settings.kafka, settings.app_id, topics)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await asked.ask_once()
        return asked.ends
    finally:
        await asked.close()
