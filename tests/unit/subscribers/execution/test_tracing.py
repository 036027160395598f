"""Each call of a subscriber's function is a span, in the slot in which it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from streams_app import Received
from streams_app.clock import SystemClock
from streams_app.errors import text_of
from streams_app.subscribers.execution.async_executor import AsyncExecutor
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.failure_reporter import _raised_at
from streams_app.subscribers.execution.thread_executor import ThreadExecutor
from streams_app.subscribers.execution.traced import SWEEP_MS, traced
from streams_app.tracing.spans import Tracing
from tests.helpers.subscribers.kit import Paid, subscribed
from tests.helpers.tracing.spans import GARBAGE, Spans, ids_of, parent_of, trace_parent
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 60
KINDS = ["async", "thread"]

current: list[trace.SpanContext] = []
"""The spans in which functions ran."""


def event_of(order: str = "o1", headers: Sequence[tuple[str, bytes]] = (), **more: Any) -> Received[Paid]:
    return Received(
        Paid(order), f"e-{order}", raw_key=order.encode(), headers=headers, topic="orders", partition=3, offset=41,
        subscriber="ship", **more,
    )  # fmt: skip


async def ran(
    kind: str, act: Callable[[Any], Any], events: Sequence[Received[Paid]], timeout: str = "10s", slots: int = 1
) -> list[Attempt]:
    """Run attempts at events, and return them once all have an outcome."""

    async def ship(event: Received[Paid]) -> None:
        current.append(trace.get_current_span().get_span_context())
        returned = act(event)
        if returned is not None:
            await returned

    def ship_in_thread(event: Received[Paid]) -> None:
        current.append(trace.get_current_span().get_span_context())
        act(event)

    current.clear()
    declared = subscribed(ship if kind == "async" else ship_in_thread, timeout=timeout)
    ended: list[Attempt] = []
    function, clock = traced(declared.function, declared, "shop", Tracing(), SystemClock()), SystemClock()
    given = (function, slots, declared.timeout_ms, clock, ended.extend)
    executor = AsyncExecutor(asyncio.get_running_loop(), *given) if kind == "async" else ThreadExecutor(*given)
    executor.put([Attempt(event, None) for event in events])
    await wait_until(lambda: len(ended) == len(events), LIMIT_SECONDS, "all have ended")
    await executor.stop()
    return ended


async def finished(spans: Spans, count: int = 1) -> list[ReadableSpan]:
    await wait_until(lambda: len(spans.all()) >= count, LIMIT_SECONDS, "the spans have ended")
    return spans.all()


@pytest.mark.parametrize("kind", KINDS)
async def test_call_is_a_child_span_of_the_context_of_its_event(kind: str, spans: Spans) -> None:
    (call,) = await ran(kind, lambda event: None, [event_of(headers=[("traceparent", trace_parent(7, 8))], attempt=2)])
    span = spans.one()

    assert AttemptOutcome.DONE is call.outcome
    assert ("process orders", SpanKind.CONSUMER, (7, 8), StatusCode.UNSET) == (
        span.name, span.kind, parent_of(span), span.status.status_code,
    )  # fmt: skip
    assert [ids_of(span)] == [(context.trace_id, context.span_id) for context in current]
    attributes = dict(span.attributes or {})
    function = str(attributes.pop("code.function.name"))
    assert function.startswith(f"{__name__}.ran.<locals>.ship")
    assert {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 41,
        "messaging.kafka.message.key": "o1",
        "messaging.message.id": "e-o1",
        "messaging.consumer.group.name": "shop.ship",
        "streams_app.subscriber": "ship",
        "streams_app.attempt": 2,
    } == attributes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE)
async def test_event_with_an_invalid_trace_parent_starts_a_new_trace(kind: str, value: bytes, spans: Spans) -> None:
    (call,) = await ran(kind, lambda event: None, [event_of(headers=[("traceparent", value)])])

    assert AttemptOutcome.DONE is call.outcome
    assert None is parent_of(spans.one())


@pytest.mark.parametrize("kind", KINDS)
async def test_slot_closes_the_span_of_a_call_at_its_end(kind: str, spans: Spans) -> None:
    await ran(kind, lambda event: None, [event_of(f"o{number}") for number in range(20)])

    assert 20 == len({context.trace_id for context in current})
    assert all(parent_of(span) is None for span in spans.all())


async def test_concurrent_calls_have_separate_spans(spans: Spans) -> None:
    seen: dict[str, set[int]] = {}

    async def wait(event: Received[Paid]) -> None:
        for _ in range(5):
            seen.setdefault(event.data.order_id, set()).add(trace.get_current_span().get_span_context().span_id)
            await asyncio.sleep(0)

    await ran("async", wait, [event_of(f"o{number}") for number in range(8)], slots=8)

    assert {1} == {len(ids) for ids in seen.values()}
    assert {ids_of(span)[1] for span in spans.all()} == set.union(*seen.values())


@pytest.mark.parametrize("kind", KINDS)
async def test_failed_call_records_its_error_with_the_same_outcome(kind: str, spans: Spans) -> None:
    def fail(event: Received[Paid]) -> None:
        raise ConnectionError("the carrier is away")

    (call,) = await ran(kind, fail, [event_of()])
    span = spans.one()

    assert (AttemptOutcome.ERROR, "ConnectionError('the carrier is away')") == (call.outcome, text_of(call.error or Exception()))
    assert f" at={__file__}:" in _raised_at(call.error)
    assert (StatusCode.ERROR, "ConnectionError") == (span.status.status_code, (span.attributes or {})["error.type"])
    assert "fail" in str((span.events[0].attributes or {})["exception.stacktrace"])


async def test_overdue_call_on_the_loop_has_timed_out(spans: Spans) -> None:
    async def wait_for_the_carrier(event: Received[Paid]) -> None:
        await asyncio.Event().wait()

    (call,) = await ran("async", wait_for_the_carrier, [event_of()], timeout="100ms")
    (span,) = await finished(spans)

    assert AttemptOutcome.TIMEOUT is call.outcome
    assert (StatusCode.ERROR, "TimeoutError('not ended within 100ms')") == (span.status.status_code, span.status.description)
    assert "in wait_for_the_carrier" in str((span.events[0].attributes or {})["exception.stacktrace"])


async def test_overdue_call_in_a_thread_has_timed_out_once_it_returns(spans: Spans) -> None:
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(event: Received[Paid]) -> None:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()

    event, clock = event_of(), SystemClock()
    (call,) = await ran("thread", hang, [event], timeout="100ms")
    assert AttemptOutcome.TIMEOUT is call.outcome
    assert [] == spans.all()
    late_ms = (event.deadline_ms or 0) + SWEEP_MS
    await wait_until(lambda: clock.now_ms() >= late_ms, LIMIT_SECONDS, "a call that returns now is late")
    go.set()
    (span,) = await finished(spans)

    assert "TimeoutError" == (span.attributes or {})["error.type"]


async def test_call_cancelled_before_its_timeout_was_not_late(spans: Spans) -> None:
    def cancel(event: Received[Paid]) -> None:
        raise asyncio.CancelledError

    await ran("async", cancel, [event_of()])

    assert "CancelledError" == (spans.one().attributes or {})["error.type"]


async def test_sync_function_that_returns_an_awaitable_in_a_thread_fails(spans: Spans) -> None:
    async def later() -> None:
        """Do nothing; it is never awaited."""

    def ship(event: Received[Paid]) -> Any:
        return later()

    declared = subscribed(ship)
    with pytest.raises(TypeError):
        traced(ship, declared, "shop", Tracing(), SystemClock())(event_of())

    assert StatusCode.ERROR is spans.one().status.status_code
