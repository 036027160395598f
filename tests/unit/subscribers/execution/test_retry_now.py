"""Retries on request: waiting events become due in their order, and an open circuit breaker probes at once."""

from __future__ import annotations

from streams_app.subscribers.execution.circuit_breaker import LAST_ATTEMPTS, CircuitBreaker
from streams_app.subscribers.execution.queues import RetryQueue


def test_waiting_events_become_due_and_those_that_were_due_keep_their_place() -> None:
    queue: RetryQueue[str] = RetryQueue()
    for event, due_ms in (("late", 900), ("due", 50), ("soon", 200)):
        queue.push(event, due_ms)

    assert (2, 0) == (queue.make_due(100), queue.make_due(100))
    assert ["due", "late", "soon", None] == [queue.pop_due(100) for _ in range(4)]


def test_event_that_fails_after_the_request_waits() -> None:
    queue: RetryQueue[str] = RetryQueue()
    queue.push("first", 900)
    queue.make_due(100)
    queue.push("second", 950)

    assert ["first", None] == [queue.pop_due(100) for _ in range(2)]


def test_open_circuit_breaker_probes_at_once_and_stays_open_until_a_success() -> None:
    breaker = CircuitBreaker(60_000)
    for number in range(LAST_ATTEMPTS):
        breaker.failed(number, 0, 0)
    for at_ms in range(1_000, 500_000, 10_000):
        breaker.failed("x", at_ms, at_ms)
    before = breaker.may_begin(500_000, 0)
    breaker.probe_now()
    asked = (breaker.may_begin(500_000, 0), breaker.may_begin(500_000, 1), breaker.is_suspended)
    breaker.failed("x", 500_000, 500_000)

    assert (False, (True, False, True)) == (before, asked)
    assert breaker.may_begin(502_000, 0)


def test_closed_circuit_breaker_is_not_changed() -> None:
    breaker = CircuitBreaker(60_000)
    breaker.failed("x", 0, 0)
    breaker.probe_now()

    assert (False, True, None) == (breaker.is_suspended, breaker.has_failures, breaker.next_ms())
