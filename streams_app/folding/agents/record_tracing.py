"""Spans of folded records, with links to the events that were folded into them.

The trace contexts of events are stored only in the worker's memory, so the state in Redis and the protocol are the same with and
without tracing. After a restart or a rebalance, the records of open groups have fewer links, or none.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from streams_app.codec import canonical_bytes
from streams_app.delivery.batch import TP
from streams_app.delivery.producer import Outcomes, OutgoingRecord
from streams_app.events.trace_contexts import MAX_LINKS, sampled_context
from streams_app.folding.core.event import FoldInput
from streams_app.folding.core.record import SealedGroup

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from streams_app.tracing.spans import Tracing

MAX_CONTEXTS: Final = 100_000
"""Maximum number of contexts in a worker, some 25 MB; beyond it, groups that have been silent for longest lose their links."""

RECORDS_AT_ONCE: Final = 50
"""After this many records, other tasks may run: a record with all its links takes some 0.4 ms."""

ShardKey = tuple[str, TP]


class EventContexts:
    """The trace contexts of the newest events of each group, at most ``most``, in all shards of a worker."""

    def __init__(self, most: int = MAX_CONTEXTS) -> None:
        self._most = most
        self._count = 0
        self._groups: OrderedDict[tuple[ShardKey, bytes], dict[bytes, int]] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    def add(self, shard: ShardKey, member: bytes, context: bytes, offset: int) -> None:
        """Add the trace context of an event.

        If its group has too many, the oldest is dropped. If the worker has too many, the longest silent groups lose theirs.
        """
        key = shard, member
        group = self._groups.setdefault(key, {})
        self._groups.move_to_end(key)
        self._count -= len(group)
        group.pop(context, None)  # so that the newest one is last
        group[context] = offset
        if len(group) > MAX_LINKS:
            del group[next(iter(group))]
        self._count += len(group)
        while self._count > self._most:
            self._count -= len(self._groups.popitem(last=False)[1])

    def of(self, shard: ShardKey, sealed: SealedGroup) -> list[bytes]:
        """Return the stored trace contexts of the events in a sealed group, the oldest first."""
        group = self._groups.get((shard, sealed.member), {})
        return [context for context, offset in group.items() if sealed.first_offset <= offset <= sealed.last_offset]

    def remove(self, shard: ShardKey, sealed: SealedGroup) -> None:
        """Remove the trace contexts of the events in a sealed group, and of events before them; keep those of later events."""
        key = shard, sealed.member
        group = self._groups.pop(key, None)
        if group is None:
            return
        self._count -= len(group)
        if left := {context: offset for context, offset in group.items() if offset > sealed.last_offset}:
            self._groups[key] = left
            self._count += len(left)


class RecordTracing:
    """Creates spans for the folded records of one shard, with links to the events that were folded into them."""

    def __init__(self, tracing: Tracing, contexts: EventContexts, shard: ShardKey, output: str) -> None:
        self._tracing = tracing
        self._contexts = contexts
        self._shard = shard
        self._output = output

    def collected(self, events: Iterable[FoldInput], records: Sequence[Any]) -> Iterable[FoldInput]:
        """Return the same events; the iterator stores the trace context of an event of a sampled trace before it yields it."""
        found = {record.offset: context for record in records if record.headers and (context := sampled_context(record.headers))}
        return self._collected(events, found) if found else events

    def _collected(self, events: Iterable[FoldInput], found: dict[int, bytes]) -> Iterator[FoldInput]:
        for event in events:
            if (context := found.get(event[0])) is not None:
                self._contexts.add(self._shard, event[2], context, event[0])
            yield event

    async def begin(self, groups: Sequence[SealedGroup], records: Sequence[OutgoingRecord], owner: Sequence[int]) -> list[Span]:
        """Begin and return a span for each record, and add its trace context to the headers of the record.

        For each record, ``owner`` has the position of its group in ``groups``.
        """
        from streams_app.tracing.spans import headers_of  # its package is optional

        fold, (topic, partition) = self._shard
        spans = []
        for record, position in zip(records, owner, strict=True):
            group = groups[position]
            attributes: dict[str, str | int] = {
                "messaging.message.id": record.headers[0][1].decode(),
                "messaging.kafka.message.key": canonical_bytes(group.member).decode("utf-8", "backslashreplace"),
                "streams_app.fold": fold,
                "streams_app.fold.reason": group.reason,
                "streams_app.fold.events": group.events,
                "streams_app.fold.source": f"{topic}-{partition}",
            }
            span = self._tracing.begin_record(self._output, self._contexts.of(self._shard, group), attributes)
            record.headers.extend(headers_of(span))
            spans.append(span)
            if len(spans) % RECORDS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return spans

    def end(self, spans: Sequence[Span], outcomes: Outcomes) -> None:
        """End the span of each record; ``outcomes`` has the error of producing it, or None if the broker acknowledged it."""
        for span, outcome in zip(spans, outcomes, strict=True):
            self._tracing.end_record(span, outcome)

    def finished(self, groups: Sequence[SealedGroup]) -> None:
        """Remove the trace contexts of sealed groups whose records the broker has acknowledged."""
        for group in groups:
            self._contexts.remove(self._shard, group)
