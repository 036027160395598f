"""When failed events are retried, and when the subscriber is suspended."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.execution.circuit_breaker import CircuitBreaker
from streams_app.subscribers.execution.queues import KeyQueue, RetryQueue
from streams_app.subscribers.execution.retry_decision import delay_ms

PATIENCE_MS = 3_600_000


# Delays


@given(st.text(), st.integers(1, 10_000))
def test_delay_is_between_half_and_the_whole_of_the_rule(event_id: str, attempt: int) -> None:
    whole_ms = min(300_000, 1_000 * 3 ** min(attempt - 1, 20))

    assert whole_ms // 2 <= delay_ms(Retries(), event_id, attempt) <= whole_ms


def test_delay_is_deterministic() -> None:
    assert delay_ms(Retries(), "o1", 2) == delay_ms(Retries(), "o1", 2) == 2_559


def test_delays_of_events_that_failed_together_are_spread() -> None:
    delays = sorted(delay_ms(Retries(), f"o{number}", 4) for number in range(1_000))

    assert max(later - one for one, later in pairwise(delays)) < 27_000 / 2 / 50


def test_delays_of_one_event_differ() -> None:
    rule = Retries(first="7m", factor=1, longest="7m")

    assert 8 == len({delay_ms(rule, "o1", attempt) for attempt in range(1, 9)})


# Waiting events


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3))))
def test_each_waiting_event_is_due_once_and_in_order(pushed: list[tuple[int, int]]) -> None:
    waiting: RetryQueue[object] = RetryQueue()
    events = []
    for due_ms, _ in pushed:
        events.append((due_ms, object()))
        waiting.push(events[-1][1], due_ms)
    taken = []
    for now_ms in range(21):
        while (event := waiting.pop_due(now_ms)) is not None:
            taken.append((now_ms, event))

    assert sorted(events, key=lambda pair: pair[0]) == taken
    assert None is waiting.pop_due(21)


def test_event_is_not_due_a_millisecond_early() -> None:
    waiting: RetryQueue[str] = RetryQueue()
    waiting.push("o1", 10)

    assert [None, "o1", None] == [waiting.pop_due(9), waiting.pop_due(10), waiting.pop_due(11)]


# Outage


def suspended(events: int = 3) -> CircuitBreaker:
    circuit_breaker = CircuitBreaker(PATIENCE_MS)
    for number in range(20):
        circuit_breaker.failed(f"o{number % events}", 0, 100)
    return circuit_breaker


@pytest.mark.parametrize(("attempts", "events", "is_outage"), [(20, 3, True), (19, 3, False), (20, 2, False), (60, 2, False)])
def test_outage_needs_twenty_failed_attempts_of_three_events(attempts: int, events: int, is_outage: bool) -> None:
    circuit_breaker = CircuitBreaker(PATIENCE_MS)
    for number in range(attempts):
        circuit_breaker.failed(f"o{number % events}", 0, 100)

    assert is_outage == circuit_breaker.is_suspended


def test_one_success_among_the_last_twenty_is_no_outage() -> None:
    circuit_breaker = CircuitBreaker(PATIENCE_MS)
    for number in range(19):
        circuit_breaker.failed(f"o{number}", 0, 100)
    circuit_breaker.succeeded()
    circuit_breaker.failed("o19", 0, 100)

    assert not circuit_breaker.is_suspended


def test_outage_probes_are_made_one_at_a_time_at_growing_intervals() -> None:
    circuit_breaker = suspended()
    now_ms, begins = 100, []
    for _ in range(9):
        now_ms = circuit_breaker.next_ms() or 0
        assert not circuit_breaker.may_begin(now_ms - 1, running=0)
        assert not circuit_breaker.may_begin(now_ms, running=1)
        assert circuit_breaker.may_begin(now_ms, running=0)
        begins.append(now_ms)
        circuit_breaker.failed("o1", now_ms, now_ms)

    assert [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000] == [later - one for one, later in pairwise(begins)]
    assert 1_100 == begins[0]


def test_attempts_in_progress_at_the_start_of_an_outage_do_not_delay_the_next_probe() -> None:
    circuit_breaker = suspended()
    for number in range(50):
        circuit_breaker.failed(f"o{number}", 50, 120)

    assert 1_100 == circuit_breaker.next_ms()


def test_first_success_ends_the_outage() -> None:
    circuit_breaker = suspended()
    circuit_breaker.failed("o1", 5_000, 5_000)

    assert circuit_breaker.succeeded()
    assert circuit_breaker.may_begin(5_001, running=99)
    assert not circuit_breaker.succeeded()


def test_failures_during_an_outage_count_only_after_patience() -> None:
    circuit_breaker = suspended()

    assert [False, False, True] == [circuit_breaker.counts(now_ms) for now_ms in (100, 99 + PATIENCE_MS, 100 + PATIENCE_MS)]
    assert CircuitBreaker(PATIENCE_MS).counts(0)


def test_fresh_and_waiting_events_alternate() -> None:
    circuit_breaker = suspended()

    assert [True, False, True, False] == [circuit_breaker.takes_fresh() for _ in range(4)]


# Order


@given(st.lists(st.sampled_from([b"a", b"b", b"c", None])), st.data())
def test_events_of_one_key_run_one_after_another_in_log_order(keys: list[bytes | None], data: st.DataObject) -> None:
    order: KeyQueue[int] = KeyQueue()
    running = [number for number, key in enumerate(keys) if order.arrived(key, number)]
    assert running == [number for number, key in enumerate(keys) if key is None or key not in keys[:number]]
    begun = list(running)
    while running:
        number = running.pop(data.draw(st.integers(0, len(running) - 1)))
        following = order.finished(keys[number])
        if following is not None:
            assert keys[following] == keys[number]
            assert keys[number] not in [keys[other] for other in running]
            running.append(following)
            begun.append(following)

    assert list(range(len(keys))) == sorted(begun)
    for key in (b"a", b"b", b"c"):
        of_key = [number for number in begun if keys[number] == key]
        assert sorted(of_key) == of_key


def test_key_without_events_is_removed() -> None:
    order: KeyQueue[int] = KeyQueue()
    order.arrived(b"a", 1)

    assert None is order.finished(b"a")
    assert {} == order._behind
