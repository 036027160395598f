"""Spans of folded records, and the contexts of events to which they are linked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import SpanKind, StatusCode

from streams_app.codec import TEXT_TAG
from streams_app.delivery.batch import TP
from streams_app.delivery.producer import OutgoingRecord
from streams_app.events.trace_contexts import MAX_LINKS, sampled_context
from streams_app.folding.agents.record_tracing import EventContexts, RecordTracing
from streams_app.folding.core.record import SealedGroup
from streams_app.tracing.spans import Tracing
from tests.helpers.tracing.spans import GARBAGE, Spans, ids_of, trace_parent

SHARD = "f", TP("t", 0)
A, B = TEXT_TAG + b"a", TEXT_TAG + b"b"


def sealed(first: int, last: int, member: bytes = A) -> SealedGroup:
    return SealedGroup(member, first, last, last - first + 1, 0, 0, "quiet", 0, 1, {})


def added(*offsets: int, member: bytes = A, contexts: EventContexts | None = None) -> EventContexts:
    contexts = contexts or EventContexts()
    for offset in offsets:
        contexts.add(SHARD, member, trace_parent(1, offset + 1), offset)
    return contexts


# Contexts of events


@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE)
def test_invalid_context_is_not_kept(value: bytes) -> None:
    assert None is sampled_context([("traceparent", value)])


def test_context_of_an_unsampled_trace_is_not_kept() -> None:
    assert None is sampled_context([("traceparent", trace_parent(1, 2, is_sampled=False))])


def test_context_of_a_later_version_is_kept_without_its_additions() -> None:
    value = b"01" + trace_parent(1, 2)[2:]

    assert value == sampled_context([("ce_id", b"e"), ("traceparent", value + b"-more")])
    assert value == sampled_context([("traceparent", value)])
    assert None is sampled_context([("traceparent", value + b"more")])


def test_group_has_the_contexts_of_its_own_offsets() -> None:
    contexts = added(1, 2, 3, 4)

    assert [trace_parent(1, 3), trace_parent(1, 4)] == contexts.of(SHARD, sealed(2, 3))
    assert [] == contexts.of(SHARD, sealed(1, 4, B))
    assert [] == contexts.of(("g", TP("t", 0)), sealed(1, 4))


def test_group_keeps_its_newest_contexts() -> None:
    contexts = added(*range(100))

    assert [trace_parent(1, offset + 1) for offset in range(100 - MAX_LINKS, 100)] == contexts.of(SHARD, sealed(0, 99))
    assert MAX_LINKS == len(contexts)


def test_events_of_one_context_count_once() -> None:
    contexts = EventContexts()
    contexts.add(SHARD, A, trace_parent(9, 9), 0)
    for offset in range(1, 100):
        contexts.add(SHARD, A, trace_parent(1, 1), offset)

    assert [trace_parent(9, 9), trace_parent(1, 1)] == contexts.of(SHARD, sealed(0, 99))


def test_contexts_of_events_after_the_sealed_group_stay() -> None:
    contexts = added(1, 2, 3)
    contexts.remove(SHARD, sealed(1, 2))
    contexts.remove(SHARD, sealed(1, 2, B))

    assert [trace_parent(1, 4)] == contexts.of(SHARD, sealed(1, 9))
    contexts.remove(SHARD, sealed(3, 3))
    assert 0 == len(contexts)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50), st.booleans()), max_size=300), st.integers(1, 60))
def test_number_of_contexts_is_bounded_and_consistent_in_any_order(steps: list[tuple[int, int, bool]], most: int) -> None:
    contexts = EventContexts(most)
    for offset, (group, context, is_sealed) in enumerate(steps):
        member = TEXT_TAG + b"%d" % group
        if is_sealed:
            contexts.remove(SHARD, sealed(0, offset, member))
            assert [] == contexts.of(SHARD, sealed(0, offset, member))
        else:
            contexts.add(SHARD, member, trace_parent(1, context + 1), offset)
        found = [contexts.of(SHARD, sealed(0, offset, TEXT_TAG + b"%d" % number)) for number in range(10)]
        assert len(contexts) == sum(map(len, found)) <= most
        assert all(len(group) <= MAX_LINKS for group in found)


# Records


def records_of(*entries: SealedGroup) -> list[OutgoingRecord]:
    return [OutgoingRecord("out", entry.member[1:], b"{}", [("fold-id", b"f:t:0:%d-%d" % entry[1:3])]) for entry in entries]


def test_events_of_a_range_are_kept_with_their_groups_and_passed_on_unchanged() -> None:
    contexts = EventContexts()
    tracing = RecordTracing(Tracing(), contexts, SHARD, "out")
    events: list[Any] = [(offset, 0, A if offset % 2 else B, {}) for offset in range(5, 9)]
    records = [SimpleNamespace(offset=offset, headers=[("traceparent", trace_parent(1, offset))]) for offset in range(4, 8)]
    records.append(SimpleNamespace(offset=8, headers=()))

    assert events == list(tracing.collected(events, records))
    assert [trace_parent(1, 5), trace_parent(1, 7)] == contexts.of(SHARD, sealed(0, 9))
    assert [trace_parent(1, 6)] == contexts.of(SHARD, sealed(0, 9, B))


def test_events_without_contexts_are_passed_on_unchanged() -> None:
    events: list[Any] = [(1, 0, A, {})]

    assert events is RecordTracing(Tracing(), EventContexts(), SHARD, "out").collected(
        events, [SimpleNamespace(offset=1, headers=())]
    )


async def test_each_record_is_a_root_span_with_links_to_its_events(spans: Spans) -> None:
    contexts = added(1, 2)
    tracing = RecordTracing(Tracing(), contexts, SHARD, "out")
    entries = [sealed(1, 2), sealed(3, 3, B)]
    records = records_of(*entries)
    tracing.end(await tracing.begin(entries, records, [0, 1]), [None, ConnectionError("away")])
    first, second = spans.all()

    assert ("publish out", SpanKind.PRODUCER, None, StatusCode.UNSET) == (
        first.name, first.kind, first.parent, first.status.status_code,
    )  # fmt: skip
    assert [(1, 2), (1, 3)] == [(link.context.trace_id, link.context.span_id) for link in first.links]
    (fold_id, (name, value)) = records[0].headers
    assert (("fold-id", b"f:t:0:1-2"), "traceparent") == (fold_id, name)
    assert trace_parent(*ids_of(first))[:-2] == value[:-2]  # the flags follow, of which the SDK may set more than one
    assert {
        "messaging.system": "kafka",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "out",
        "messaging.message.id": "f:t:0:1-2",
        "messaging.kafka.message.key": "a",
        "streams_app.fold": "f",
        "streams_app.fold.reason": "quiet",
        "streams_app.fold.events": 2,
        "streams_app.fold.source": "t-0",
    } == dict(first.attributes or {})
    assert ((), StatusCode.ERROR) == (tuple(second.links), second.status.status_code)


async def test_resent_record_keeps_its_links_until_it_is_acknowledged(spans: Spans) -> None:
    contexts, entry = added(1), sealed(1, 1)
    tracing = RecordTracing(Tracing(), contexts, SHARD, "out")
    for _ in range(2):
        tracing.end(await tracing.begin([entry], records_of(entry), [0]), [None])
    tracing.finished([entry])
    tracing.end(await tracing.begin([entry], records_of(entry), [0]), [None])

    assert [1, 1, 0] == [len(span.links) for span in spans.all()]
