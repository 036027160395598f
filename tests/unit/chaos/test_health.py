"""The judge of the health of workers in an outage detects violations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.folds.health import Sample, faults_of, reported_seconds
from tests.chaos.stage import Outage

KAFKA, REDIS = Outage("kafka", 100.0, 115.0), Outage("redis", 100.0, 115.0)


def reported(*, ready_until: float = 0.0, lag: object = lambda at: 50.0, produced: float = 0.0, pid: int = 1) -> list[Sample]:
    """Return samples of one worker, twice a second from 90 to 120."""
    times = [90 + number / 2 for number in range(60)]
    assert callable(lag)
    return [Sample(at, pid, at < 100 + ready_until or at > 115, lag(at), int(produced * (at - 90))) for at in times]


@pytest.mark.parametrize("outage", [KAFKA, REDIS], ids=["kafka", "redis"])
def test_workers_that_report_an_outage_in_time_and_keep_their_lag_are_accepted(outage: Outage) -> None:
    assert [] == faults_of([outage], reported(ready_until=11.5))


def test_worker_that_is_ready_too_long_is_a_violation() -> None:
    samples = [*reported(ready_until=3), *reported(ready_until=13, pid=2)]

    assert ["worker 2 was ready 12.5 s into an outage of kafka"] == faults_of([KAFKA], samples)


def test_falling_lag_is_a_violation() -> None:
    (fault,) = faults_of([KAFKA], reported(lag=lambda at: 50 if at < 108 else 0))

    assert fault == "worker 1 reported a lag that fell in an outage of kafka: [(50, 0)]"


def test_events_fetched_before_an_outage_may_be_folded_at_its_beginning() -> None:
    assert [] == faults_of([KAFKA], reported(lag=lambda at: 50 if at < 102 else 0))


def test_constant_lag_while_events_arrive_is_a_violation() -> None:
    (fault,) = faults_of([REDIS], reported(lag=lambda at: 0, produced=100))

    assert fault == "worker 1 reported a lag of 0 in an outage of redis in which 1100 events arrived"


def test_lag_that_rises_with_the_arriving_events_is_accepted() -> None:
    assert [] == faults_of([REDIS], reported(lag=lambda at: max(0, 100 * (at - 102)), produced=100))


def test_outage_report_time_is_that_of_the_last_worker() -> None:
    assert [7.0] == reported_seconds([KAFKA], [*reported(ready_until=2), *reported(ready_until=7, pid=2)])
    assert [] == reported_seconds([KAFKA], reported(ready_until=30))


def test_other_reason_at_the_beginning_does_not_count_as_an_outage_report() -> None:
    samples = [replace(each, is_ready=False) if each.at < 102 else each for each in reported(ready_until=7)]

    assert [7.0] == reported_seconds([KAFKA], samples)
