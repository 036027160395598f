"""The counters of a subscriber, and its status from that of its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from streams_app.delivery.batch import TP
from streams_app.delivery.dead_letters import unacknowledged_text
from streams_app.fold import Fold
from streams_app.health.metrics import Metrics
from streams_app.reasons import OF_SUBSCRIBERS, Reason
from streams_app.settings import Settings
from streams_app.subscribers.declaration.received import Reject, Retry
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.execution.dead_letter_writer import DeadLetterWriter
from streams_app.subscribers.execution.dispatcher import Dispatcher
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.execution.queues import KeyQueue
from streams_app.subscribers.execution.retry_decision import DeadLettering
from streams_app.subscribers.execution.status import PartitionStatus, SubscriberStatus, combined_status, first_unread, status_remark
from streams_app.subscribers.execution.subscriber_metrics import (
    ATTEMPTED,
    FINISHED,
    Attempted,
    HistogramBuffer,
    SubscriberMetrics,
    attempted,
)
from streams_app.subscribers.running.subscriber_gauges import REPORT_EVERY_UPDATES, SubscriberGauges
from tests.helpers.manual_clock import ManualClock
from tests.helpers.waiting import wait_until

NOW_MS = 1_700_000_000_000
FOLD = Fold(name="f", source="s", group_key="id", changed="names", quiet_period="1s")
ONE, TWO = TP("orders", 0), TP("orders", 1)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(Settings(app_id="shop", folds=(FOLD,)))


@pytest.fixture
def subscriber_metrics(metrics: Metrics) -> SubscriberMetrics:
    clock = ManualClock(NOW_MS)
    clock.advance_ms(10_000)
    return SubscriberMetrics(metrics, "ship", "order.paid", clock)


def test_first_dead_letter_of_a_subscriber_is_an_increase_for_any_reason(
    metrics: Metrics, subscriber_metrics: SubscriberMetrics
) -> None:
    registry, name = metrics.registry, "streams_app_subscriber_dead_letters_total"

    assert {0.0} == {registry.get_sample_value(name, {"subscriber": "ship", "reason": one}) for one in OF_SUBSCRIBERS}


def work_of(*, attempts: int = 1, timestamp_ms: int = NOW_MS) -> InFlightEvent:
    return InFlightEvent(SimpleNamespace(offset=0, timestamp=timestamp_ms, headers=()), 0, attempts)


def call_of(
    outcome: AttemptOutcome, error: BaseException | None = None, work: InFlightEvent | None = None, begun_ms: int = 2_000
) -> Attempt:
    return Attempt(None, work or work_of(), begun_ms, 2_500, outcome, error)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"streams_app_subscriber_{name}", {"subscriber": "ship", **labels})


# Counters


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (call_of(AttemptOutcome.DONE), "done"),
        (call_of(AttemptOutcome.ERROR, ValueError()), "error"),
        (call_of(AttemptOutcome.ERROR, Reject("no")), "error"),
        (call_of(AttemptOutcome.ERROR, Retry()), "retry"),
        (call_of(AttemptOutcome.TIMEOUT), "timeout"),
        (call_of(AttemptOutcome.CANCELLED), "interrupted"),
        (call_of(AttemptOutcome.CANCELLED, begun_ms=0), None),
    ],
)
def test_attempt_is_counted_by_its_outcome(call: Attempt, expected: Attempted | None) -> None:
    assert expected == attempted(call)


def test_every_series_exists_before_anything_happens(metrics: Metrics, subscriber_metrics: SubscriberMetrics) -> None:
    assert [0.0] * len(ATTEMPTED) == [value(metrics, "attempts_total", event="order.paid", outcome=one) for one in ATTEMPTED]
    assert [0.0] * len(FINISHED) == [value(metrics, "finished_total", event="order.paid", result=one) for one in FINISHED]
    assert 0 == value(metrics, "wait_seconds_count")


def test_event_whose_function_returned_is_finished(metrics: Metrics, subscriber_metrics: SubscriberMetrics) -> None:
    subscriber_metrics.ended(
        [call_of(AttemptOutcome.ERROR, ValueError(), work_of(attempts=1)), call_of(AttemptOutcome.DONE, None, work_of(attempts=2))]
    )
    subscriber_metrics.export()

    assert 1 == value(metrics, "finished_total", event="order.paid", result="done")
    assert 1 == value(metrics, "attempts_total", event="order.paid", outcome="done")
    assert 1 == value(metrics, "attempts_total", event="order.paid", outcome="error")
    assert (1, 2.0) == (value(metrics, "attempts_per_event_count"), value(metrics, "attempts_per_event_sum"))
    assert 0.5 == value(metrics, "handler_seconds_sum", outcome="done")


def test_wait_of_an_event_ends_at_its_first_attempt(metrics: Metrics, subscriber_metrics: SubscriberMetrics) -> None:
    late = work_of(attempts=2, timestamp_ms=NOW_MS)
    subscriber_metrics.ended(
        [call_of(AttemptOutcome.DONE, None, work_of(timestamp_ms=NOW_MS - 1_000)), call_of(AttemptOutcome.DONE, None, late)]
    )
    subscriber_metrics.export()

    assert (1, 3.0) == (value(metrics, "wait_seconds_count"), value(metrics, "wait_seconds_sum"))


def test_wait_of_an_event_that_fails_during_an_outage_ends_at_its_first_attempt(
    metrics: Metrics, subscriber_metrics: SubscriberMetrics
) -> None:
    work = work_of(timestamp_ms=NOW_MS - 1_000)
    subscriber_metrics.ended([call_of(AttemptOutcome.ERROR, ConnectionError(), work)])
    work.first_failed_ms = NOW_MS
    subscriber_metrics.ended([call_of(AttemptOutcome.ERROR, ConnectionError(), work)])
    subscriber_metrics.ended([call_of(AttemptOutcome.DONE, None, work)])
    subscriber_metrics.export()

    assert (1, 3.0) == (value(metrics, "wait_seconds_count"), value(metrics, "wait_seconds_sum"))


def test_duplicate_has_no_attempt(metrics: Metrics, subscriber_metrics: SubscriberMetrics) -> None:
    subscriber_metrics.finished(work_of(), "duplicate")
    subscriber_metrics.export()

    assert (1, 0) == (
        value(metrics, "finished_total", event="order.paid", result="duplicate"),
        value(metrics, "attempts_per_event_count"),
    )


def test_record_time_ahead_of_the_local_clock_counts_as_no_wait(metrics: Metrics, subscriber_metrics: SubscriberMetrics) -> None:
    subscriber_metrics.ended([call_of(AttemptOutcome.DONE, None, work_of(timestamp_ms=NOW_MS + 60_000))])
    subscriber_metrics.export()

    assert (1, 0.0) == (value(metrics, "wait_seconds_count"), value(metrics, "wait_seconds_sum"))


def test_dead_letter_finishes_its_event_unless_its_attempt_ended_late(
    metrics: Metrics, subscriber_metrics: SubscriberMetrics
) -> None:
    subscriber_metrics.dead_lettered([(work_of(attempts=8), "failed"), (work_of(), "finished-late")])
    subscriber_metrics.export()

    assert 1 == value(metrics, "dead_letters_total", reason="failed")
    assert 1 == value(metrics, "dead_letters_total", reason="finished-late")
    assert 1 == value(metrics, "finished_total", event="order.paid", result="dead-letter")
    assert 8.0 == value(metrics, "attempts_per_event_sum")


def test_attempt_of_a_dead_process_is_counted_by_the_next_owner(metrics: Metrics, subscriber_metrics: SubscriberMetrics) -> None:
    subscriber_metrics.interrupted_attempt("crash")
    subscriber_metrics.export()

    assert 1 == value(metrics, "attempts_total", event="order.paid", outcome="crash")


def test_resync_is_counted_by_its_cause(metrics: Metrics, subscriber_metrics: SubscriberMetrics) -> None:
    subscriber_metrics.resynced("token")

    assert 1 == value(metrics, "resyncs_total", cause="token")


def test_published_figures_are_not_published_twice(metrics: Metrics, subscriber_metrics: SubscriberMetrics) -> None:
    subscriber_metrics.ended([call_of(AttemptOutcome.DONE)])
    subscriber_metrics.export()
    subscriber_metrics.export()

    assert 1 == value(metrics, "finished_total", event="order.paid", result="done")
    assert 1 == value(metrics, "handler_seconds_count", outcome="done")


@given(st.lists(st.sampled_from([0, 500, 1_000, 1_500, 2_000, 2_500, 100_000])))
def test_observations_match_those_of_a_histogram(values_ms: list[int]) -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    expected, histogram = (Histogram("h", "Under test.", registry=one, buckets=(1, 2)) for one in registries)
    observed = HistogramBuffer(histogram, 1_000)
    for one_ms in values_ms:
        expected.observe(one_ms / 1000)
    observed.add_all(values_ms)
    observed.export()

    def samples(registry: CollectorRegistry) -> list[Any]:
        found = [sample for family in registry.collect() for sample in family.samples]
        return [(sample.name, sample.labels, sample.value) for sample in found if not sample.name.endswith("_created")]

    assert samples(registries[0]) == samples(registries[1])


def gauges_of(
    metrics: Metrics, subscriber_metrics: SubscriberMetrics, remark: Callable[[str | None], None], *, suspended: bool, hanging: int
) -> SubscriberGauges:
    clock = ManualClock(NOW_MS)

    def make_executor(_: Any) -> Any:
        return SimpleNamespace(running={}, hanging=hanging)

    dispatcher = Dispatcher("ship", 1, 0, Retries(), clock, make_executor)
    dispatcher.circuit_breaker.is_suspended = suspended
    return SubscriberGauges(metrics, "ship", dispatcher, subscriber_metrics, clock, remark)


def test_hanging_slots_count_as_running(metrics: Metrics, subscriber_metrics: SubscriberMetrics) -> None:
    gauges = gauges_of(metrics, subscriber_metrics, lambda text: None, suspended=False, hanging=2)
    gauges.update({})

    assert 2 == value(metrics, "running_events")
    assert 2 == gauges.present.running


@pytest.mark.parametrize(
    ("waits_for", "expected"),
    [
        ({"redis-memory"}, "subscriber ship: Redis is full"),
        ({"dead-letters"}, "subscriber ship: its dead-letter topic does not acknowledge dead letters, see /health/ready"),
        (
            {"redis", "broker"},
            "subscriber ship: the broker does not answer; subscriber ship: Redis does not answer, or rejects requests",
        ),
        (set(), None),
        # A paused reader and a pending command have reasons of their own.
        ({"operator"}, None),
    ],
)
def test_awaited_dependency_of_a_subscriber_is_a_status_remark(waits_for: set[str], expected: str | None) -> None:
    assert expected == status_remark("ship", SubscriberStatus(waits_for=frozenset(waits_for)), "unknown")


def test_full_redis_is_a_status_remark_of_a_continuing_subscriber() -> None:
    remark = status_remark("ship", SubscriberStatus(waits_for=frozenset({"redis-memory"})), "yes")

    assert "subscriber ship: Redis is full: events continue, and attempts are counted in this worker only" == remark


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            UnknownTopicOrPartitionError("topic 'paid.ship.dead' does not exist"),
            "its dead-letter topic 'paid.ship.dead' does not exist: create it with `streams-app topics create`",
        ),
        (
            TopicAuthorizationFailedError("paid.ship.dead"),
            "its dead-letter topic 'paid.ship.dead' must not be written to: this worker needs the right WRITE on it",
        ),
        (
            KafkaTimeoutError("nothing for 5 s"),
            "its dead-letter topic 'paid.ship.dead' does not acknowledge dead letters: KafkaTimeoutError('KafkaTimeoutError: "
            "nothing for 5 s')",
        ),
    ],
)
def test_topic_that_accepts_no_dead_letters_is_named(error: Exception, expected: str) -> None:
    now = SubscriberStatus(waits_for=frozenset({"dead-letters"}), dead_letters_fault=unacknowledged_text("paid.ship.dead", error))

    assert f"subscriber ship: {expected}" == status_remark("ship", now, "yes")


def test_suspended_subscriber_has_a_status_remark(metrics: Metrics, subscriber_metrics: SubscriberMetrics) -> None:
    remarks: list[str | None] = []
    for suspended in (True, False):
        gauges_of(metrics, subscriber_metrics, remarks.append, suspended=suspended, hanging=0).update({})

    assert ["subscriber ship is suspended: its last attempts have all failed, and it makes one at a time", None] == remarks


@pytest.mark.parametrize(
    ("reasons", "messages"),
    [
        (["failed", "rejected", "failed"], ["3 events dead-lettered in the last minute (2 failed, 1 rejected) subscriber=ship"]),
        (
            ["failed", "finished-late"],
            [
                "1 event dead-lettered in the last minute (1 failed) subscriber=ship",
                "1 event finished late in the last minute, after a dead letter subscriber=ship",
            ],
        ),
        (["finished-late"] * 2, ["2 events finished late in the last minute, after a dead letter subscriber=ship"]),
    ],
    ids=["by their reasons", "a second dead letter of an event is no event", "second dead letters only"],
)
def test_dead_letters_are_logged_once(
    metrics: Metrics,
    subscriber_metrics: SubscriberMetrics,
    caplog: pytest.LogCaptureFixture,
    reasons: list[Reason],
    messages: list[str],
) -> None:
    gauges = gauges_of(metrics, subscriber_metrics, lambda text: None, suspended=False, hanging=0)
    subscriber_metrics.dead_lettered([(work_of(), reason) for reason in reasons])
    for _ in range(2 * REPORT_EVERY_UPDATES):
        gauges.update({})
    gauges.log_rejections()

    assert messages == caplog.messages


# What it waits for


def test_broker_without_log_ends_is_awaited_while_ages_grow(metrics: Metrics, subscriber_metrics: SubscriberMetrics) -> None:
    clock = ManualClock(NOW_MS)

    def make_executor(_: Any) -> Any:
        return SimpleNamespace(running={}, hanging=0)

    for_operator = [True, False, False]
    gauges = SubscriberGauges(
        metrics, "ship", Dispatcher("ship", 1, 0, Retries(), clock, make_executor), subscriber_metrics, clock,
        waits_for_operator=for_operator.pop,
    )  # fmt: skip
    observed = []
    for unread_ranges in ({ONE: (0, 5)}, None, None):
        gauges.update(unread_ranges)
        clock.advance_ms(2_000)
        observed.append((sorted(gauges.present.waits_for), value(metrics, "oldest_waiting_seconds")))

    assert [([], 0), (["broker"], 2), (["operator"], 4)] == observed
    assert [0, 1] == [
        metrics.registry.get_sample_value("streams_app_waiting_for", {"subscriber": "ship", "what": what})
        for what in ("broker", "operator")
    ]
    assert 5 == value(metrics, "waiting_events")


async def test_unacknowledged_dead_letters_are_awaited() -> None:
    has_them = asyncio.Event()

    async def send(_: Any, on_failed: Any) -> None:
        await has_them.wait()

    kept: list[tuple[InFlightEvent, str]] = []
    writer = DeadLetterWriter(ONE, "ship", cast("Any", SimpleNamespace(send=send)), lambda works: None, kept.extend)
    sending = asyncio.create_task(writer.forever())
    writer.put(work := work_of(), DeadLettering("failed", "why"))
    await asyncio.sleep(0)
    is_waiting = [writer.sample_stalled(), writer.sample_stalled()]
    has_them.set()
    await wait_until(lambda: kept, 60, "the broker has them")
    is_waiting.append(writer.sample_stalled())
    sending.cancel()

    assert [False, True, False] == is_waiting
    assert [(work, "failed")] == kept


# Status


def test_unread_events_count_as_waiting() -> None:
    statuses = [PartitionStatus(ONE, 100, unfinished=30, retrying=4)]
    now = combined_status(statuses, {ONE: (60, 150), TWO: (7, 9)}, [], running=6, is_suspended=False, now_ms=NOW_MS)

    assert (50 + 2 + 30 - 4 - 6, 6, 4) == (now.waiting, now.running, now.retrying)


def test_claimed_partition_without_an_assignment_has_no_unread_events() -> None:
    assert (
        3
        == combined_status([PartitionStatus(ONE, 100, unfinished=3)], {}, [], running=0, is_suspended=False, now_ms=NOW_MS).waiting
    )


def test_oldest_waiting_age_covers_all_queues() -> None:
    statuses = [PartitionStatus(ONE, 0, oldest_ms=NOW_MS - 3_000), PartitionStatus(TWO, 0)]

    def oldest(*since_ms: int | None) -> int:
        return combined_status(statuses, {}, since_ms, running=0, is_suspended=False, now_ms=NOW_MS).oldest_waiting_ms

    assert 3_000 == oldest(None, NOW_MS - 10)
    assert 9_000 == oldest(NOW_MS - 9_000, None)


def test_oldest_waiting_age_grows_with_the_clock_and_is_never_negative() -> None:
    statuses = [PartitionStatus(ONE, 0, oldest_ms=NOW_MS)]
    ages = [
        combined_status(statuses, {}, [], running=0, is_suspended=False, now_ms=NOW_MS + passed_ms).oldest_waiting_ms
        for passed_ms in (-5, 0, 5)
    ]

    assert [0, 0, 5] == ages
    assert 0 == combined_status([], {}, [], running=0, is_suspended=False, now_ms=NOW_MS).oldest_waiting_ms


def test_paused_reader_is_named_with_its_unfinished_events() -> None:
    statuses = [
        PartitionStatus(ONE, 0, unfinished=10_000, waits_for=frozenset({"window"})),
        PartitionStatus(TWO, 0, waits_for=frozenset({"redis"})),
    ]
    now = combined_status(statuses, {}, [], running=0, is_suspended=True, now_ms=NOW_MS)

    assert ((ONE, 10_000),) == now.full
    assert {"window", "redis"} == now.waits_for


def test_unread_events_start_at_the_reader_or_at_the_committed_offset_without_one() -> None:
    assert {ONE: 100, TWO: 7} == first_unread([PartitionStatus(ONE, 100)], {ONE: (60, 150), TWO: (7, 9)})


def test_next_behind_yields_the_second_event_of_each_key() -> None:
    order: KeyQueue[str] = KeyQueue()
    for key, event in ((b"a", "a1"), (b"a", "a2"), (b"a", "a3"), (b"b", "b1")):
        order.arrived(key, event)

    assert ["a2"] == list(order.next_behind())
