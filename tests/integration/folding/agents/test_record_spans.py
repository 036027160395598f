"""Spans of records from a shard on a real Redis: contexts of events are kept until their record is acknowledged."""

from __future__ import annotations

import pytest
from aiokafka.errors import KafkaError
from redis.asyncio import Redis

from streams_app.folding.agents.record_tracing import EventContexts, RecordTracing
from streams_app.folding.core.event import FoldEvent
from streams_app.tracing.spans import Tracing
from tests.conftest import Names
from tests.helpers.folding.shards import Answering, claimed_shard, emitter_of, fold_some
from tests.helpers.tracing.spans import Spans, ids_of, trace_parent


async def test_contexts_are_kept_until_the_record_is_acknowledged(redis_client: Redis, names: Names, spans: Spans) -> None:
    shard = await claimed_shard(redis_client, names)
    contexts = EventContexts()
    contexts.add(shard.key, b"sa", trace_parent(1, 2), 0)
    await fold_some(shard, [FoldEvent(0, 1_000, b"sa", {"u": 1})])
    producer = Answering([KafkaError()])
    emitter = emitter_of(shard, producer)
    emitter.tracing = RecordTracing(Tracing(), contexts, shard.key, "out")
    await emitter.emit_due_once()
    kept = len(contexts)
    await emitter.emit_due_once()
    failed, sent = spans.all()

    assert (1, 0) == (kept, len(contexts))
    assert [(False, 1), (True, 1)] == [(span.status.is_ok, len(span.links)) for span in (failed, sent)]
    headers = [dict(record.headers) for records in producer.sent for record in records]
    assert headers[0]["fold-id"] == headers[1]["fold-id"]
    assert [trace_parent(*ids_of(span))[:-2] for span in (failed, sent)] == [each["traceparent"][:-2] for each in headers]


@pytest.mark.parametrize("records", [1, 3])
async def test_each_part_of_a_split_record_has_the_links_of_its_group(
    redis_client: Redis, names: Names, spans: Spans, records: int
) -> None:
    shard = await claimed_shard(redis_client, names)
    contexts = EventContexts()
    contexts.add(shard.key, b"sa", trace_parent(1, 2), 0)
    await fold_some(shard, [FoldEvent(0, 1_000, b"sa", {f"n{number}": "x" * 500_000 for number in range(records)})])
    emitter = emitter_of(shard, Answering())
    emitter.tracing = RecordTracing(Tracing(), contexts, shard.key, "out")
    await emitter.emit_due_once()

    assert [1] * records == [len(span.links) for span in spans.all()]
