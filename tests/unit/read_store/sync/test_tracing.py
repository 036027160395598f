"""Batches of a read store within spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from streams_app.delivery.batch import TP
from streams_app.errors import TryAgainError
from streams_app.events.trace_contexts import MAX_LINKS, newest_contexts
from streams_app.read_store.core.store import CheckpointStep
from streams_app.read_store.sync.store_sync import SyncResult
from streams_app.read_store.sync.traced import SyncOnce, traced
from streams_app.tracing.spans import Tracing
from tests.helpers.kafka.records import Raw
from tests.helpers.tracing.spans import GARBAGE, Spans, trace_parent

STEP = CheckpointStep(TP("folded", 3), 0, 9)


class Store:
    """The traced part of a store's sync: it finishes some records, or fails."""

    store_name = "dashboard"

    def __init__(self, finished: int, error: Exception | None = None) -> None:
        self.finished = finished
        self.error = error

    async def sync_once(self, step: CheckpointStep, records: Sequence[Any]) -> SyncResult:
        if self.error is not None:
            raise self.error
        return SyncResult(min(self.finished, len(records)), 0, 2, 1, 1, 0, step.to)


def traced_store(finished: int = 9, error: Exception | None = None) -> SyncOnce:
    store: Any = Store(finished, error)
    return traced(store, "app.read-store.dashboard", Tracing())


def records_of(*contexts: bytes) -> list[Raw]:
    return [Raw(5 + at, headers=(("traceparent", context),)) for at, context in enumerate(contexts)]


async def test_batch_has_a_root_span_linked_to_its_records(spans: Spans) -> None:
    records = records_of(trace_parent(7, 1), trace_parent(8, 2), trace_parent(9, 3, is_sampled=False), *GARBAGE.values())
    done = await traced_store()(STEP, records)
    span = spans.one()

    assert ("process folded", None, StatusCode.UNSET) == (span.name, span.parent, span.status.status_code)
    assert [(7, 1), (8, 2)] == [(link.context.trace_id, link.context.span_id) for link in span.links]
    assert {
        "messaging.system": "kafka", "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.destination.name": "folded", "messaging.destination.partition.id": "3",
        "messaging.consumer.group.name": "app.read-store.dashboard", "streams_app.read_store": "dashboard",
        "streams_app.read_store.written": 1, "messaging.batch.message_count": 9, "messaging.kafka.offset": 5,
    } == dict(span.attributes or {})  # fmt: skip
    assert 9 == done.records


async def test_unfinished_records_of_a_batch_are_not_linked(spans: Spans) -> None:
    await traced_store(finished=1)(STEP, records_of(trace_parent(7, 1), trace_parent(8, 2)))

    assert [7] == [link.context.trace_id for link in spans.one().links]


async def test_failed_attempt_records_the_error(spans: Spans) -> None:
    with pytest.raises(TryAgainError):
        await traced_store(error=TryAgainError("the store is away"))(STEP, records_of(trace_parent(7, 1)))
    span = spans.one()

    assert (StatusCode.ERROR, "TryAgainError", [7]) == (
        span.status.status_code, (span.attributes or {})["error.type"], [link.context.trace_id for link in span.links],
    )  # fmt: skip


async def test_step_without_records_has_no_span(spans: Spans) -> None:
    await traced_store()(STEP, [])

    assert [] == spans.all()


def test_links_are_the_distinct_contexts_of_the_newest_records() -> None:
    contexts = [trace_parent(number, 1) for number in range(1, 41)]

    assert [*contexts[-MAX_LINKS + 1 :], contexts[0]] == newest_contexts([*records_of(*contexts, contexts[0]), Raw(99)])
