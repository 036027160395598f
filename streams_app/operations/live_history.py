"""Searches the source of a live view for a page without items: Redis stores only pages that have some."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import TopicPartition

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.errors import BadEventError, StreamsAppError
from streams_app.formatting import counted, time_text
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.live.core.record_effects import ViewRule
from streams_app.operations.explain_event import last_of
from streams_app.schemas.registry import registry_of
from streams_app.settings import LiveView, Settings

MAX_OFFSETS: Final = 1_000_000
"""Maximum number of offsets that are searched, which takes some seconds."""


@dataclass(frozen=True, slots=True)
class PageHistory:
    """What the source of a live view has about a page.

    Attributes:
        newest_ms: Timestamp of the newest record of the page; None: no searched record is of it.
        searched: Number of the newest records that were searched.
        is_complete: Whether these are all records of the source.
        fault: Why the search failed; "": it did not.
    """

    newest_ms: int | None = None
    searched: int = 0
    is_complete: bool = True
    fault: str = ""


async def history_of_page(settings: Settings, view: LiveView, page: str, clock: Clock, most: int = MAX_OFFSETS) -> PageHistory:
    """Search the newest records of the topic of a view for a page. An error becomes the fault of the result."""
    try:
        return await _searched(settings, view, page, clock, most)
    except StreamsAppError as error:
        return PageHistory(fault=str(error))


async def _searched(settings: Settings, view: LiveView, page: str, clock: Clock, most: int) -> PageHistory:
    async with admin_client(settings.kafka) as client:
        count = (await partition_counts(client, [view.source])).get(view.source, 0)
    schemas = None if view.format == "json" else registry_of(settings, [view.format], clock)
    rule = ViewRule(view, settings.limits.value_bytes, schemas)
    tps = [TopicPartition(view.source, number) for number in range(count)]
    newest_ms: int | None = None
    searched = 0
    async with log_reader(settings.kafka, view.source, range(count)) as consumer:
        begins, ends = await consumer.beginning_offsets(tps), await stable_ends(consumer, tps)
        all_offsets = {TP(*tp): (begins[tp], ends[tp]) for tp in tps}
        ranges = last_of(all_offsets, most)
        consumer.resume(*tps)
        async with aclosing(read_ranges(consumer, ranges)) as read:
            async for batch in read:
                if schemas is not None:
                    await schemas.prepare(rule.values.framed_parts(batch.records))
                times = [record.timestamp for record in batch.records if _is_of(rule, batch.tp.partition, record, page)]
                searched += len(batch.records)
                newest_ms = max([*times, *([] if newest_ms is None else [newest_ms])], default=None)
    return PageHistory(newest_ms, searched, ranges == all_offsets)


def _is_of(rule: ViewRule, partition: int, record: Any, page: str) -> bool:
    try:
        effect = rule.effect_of(partition, record, 0)
    except BadEventError:
        return False
    return effect is not None and effect.page == page


def history_text(found: PageHistory, view: LiveView) -> str:
    """Say whether a page without items ever had any (pure)."""
    if found.fault:
        return f"whether such a page was ever seen is not known: {found.fault}"
    if found.newest_ms is not None:
        return f"empty: the newest record of this page is of {time_text(found.newest_ms)}, and its items expired or were removed"
    records = counted(found.searched, "record")
    if found.is_complete:
        return f"no such page was ever seen: {view.source} has {records}, none of this page"
    return f"no such page was seen lately: of the newest {records} of {view.source}, none is of this page"
