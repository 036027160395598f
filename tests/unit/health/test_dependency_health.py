"""When a dependency counts as unavailable, and when as available again."""

from __future__ import annotations

import pytest

from streams_app.health.dependency_health import DependencyHealth, kafka_limit_ms
from streams_app.health.progress import SUSPENDED_MS

WALL_MS = 1_700_000_000_000
STEP_MS = 500


def changes_of(health: DependencyHealth, begin_ms: int, end_ms: int) -> list[tuple[int, str]]:
    """Observe the health twice a second; return each change and its time."""
    times = range(begin_ms, end_ms + 1, STEP_MS)
    return [(at_ms, change) for at_ms in times if (change := health.check(at_ms, WALL_MS + at_ms))]


def asked_at(at_ms: int, limit_ms: int = 3_000) -> DependencyHealth:
    """Return a health that was asked at that time and has not answered."""
    health = DependencyHealth("Redis at r", limit_ms)
    changes_of(health, max(0, at_ms - STEP_MS), at_ms)
    health.asked(at_ms, WALL_MS + at_ms)
    return health


def test_dependency_silent_for_longer_than_the_limit_is_away() -> None:
    health = asked_at(1_000)

    assert [(4_500, "away")] == changes_of(health, 1_500, 60_000)
    assert health.is_away


def test_reason_names_dependency_time_and_error() -> None:
    health = asked_at(1_000)
    health.failed("Connection refused")
    changes_of(health, 1_500, 5_000)

    assert "Redis at r has not answered since 2023-11-14 22:13:21Z: Connection refused" == health.reason


def test_answer_ends_an_outage_and_reports_its_duration() -> None:
    health = asked_at(1_000)
    changes_of(health, 1_500, 42_000)
    health.answered()

    assert [(42_500, "back")] == changes_of(health, 42_500, 50_000)
    assert 41_500 == health.lasted_ms


def test_repeated_question_does_not_restart_the_outage() -> None:
    health = asked_at(1_000)
    for at_ms in range(2_000, 4_001, 1_000):
        health.failed("refused")
        assert [] == changes_of(health, at_ms - 500, at_ms)
        health.asked(at_ms, WALL_MS + at_ms)

    assert [(4_500, "away")] == changes_of(health, 4_500, 60_000)


@pytest.mark.parametrize("answered_at_ms", [1_500, 4_000])
def test_late_answer_is_an_answer(answered_at_ms: int) -> None:
    health = asked_at(1_000)
    assert [] == changes_of(health, 1_500, answered_at_ms)
    health.answered()

    assert [] == changes_of(health, answered_at_ms + STEP_MS, 60_000)


def test_suspended_process_blames_no_dependency() -> None:
    health = asked_at(1_000)
    changes_of(health, 1_500, 2_000)
    after_ms = 2_000 + SUSPENDED_MS + 60_000

    assert [] == changes_of(health, after_ms, after_ms + 2_000)
    assert [(after_ms + 3_500, "away")] == changes_of(health, after_ms + 2_500, after_ms + 10_000)


def test_outage_continues_while_the_process_is_suspended() -> None:
    health = asked_at(1_000)
    changes_of(health, 1_500, 10_000)

    assert [] == changes_of(health, 100_000, 110_000)
    assert health.is_away


@pytest.mark.parametrize(("session_ms", "limit_ms"), [(10_000, 3_333), (30_000, 10_000), (6_000, 2_000), (3_000, 2_000)])
def test_broker_is_away_after_a_third_of_the_session_timeout(session_ms: int, limit_ms: int) -> None:
    assert limit_ms == kafka_limit_ms(session_ms)
