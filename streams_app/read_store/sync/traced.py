"""Syncs each batch within a span that has links to the trace contexts of the records; used only if tracing is on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from streams_app.events.trace_contexts import newest_contexts
from streams_app.read_store.core.store import CheckpointStep
from streams_app.read_store.sync.store_sync import StoreSync, SyncResult

if TYPE_CHECKING:
    from streams_app.tracing.spans import Tracing

SyncOnce: TypeAlias = Callable[[CheckpointStep, Sequence[Any]], Awaitable[SyncResult]]


def traced(sync: StoreSync, group: str, tracing: Tracing) -> SyncOnce:
    """Return :meth:`.StoreSync.sync_once`, wrapped so that each attempt to sync records runs within a span of the kind CONSUMER."""

    async def sync_once(step: CheckpointStep, records: Sequence[Any]) -> SyncResult:
        if not records:
            return await sync.sync_once(step, records)
        attributes: dict[str, str | int] = {
            "messaging.destination.partition.id": str(step.tp.partition),
            "messaging.consumer.group.name": group,
            "streams_app.read_store": sync.store_name,
        }
        taken = records
        with tracing.processing_batch(step.tp.topic, attributes) as span:
            try:
                done = await sync.sync_once(step, records)
                taken = records[: done.records]  # the rest belongs to the next batch
                span.set_attribute("streams_app.read_store.written", done.written)
                return done
            finally:
                span.set_attribute("messaging.batch.message_count", len(taken))
                if taken:
                    span.set_attribute("messaging.kafka.offset", taken[0].offset)
                tracing.link(span, newest_contexts(taken))

    return sync_once
