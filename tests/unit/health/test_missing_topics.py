"""How long a worker waits for a deleted source."""

from __future__ import annotations

import pytest

from streams_app.health.dependency_health import MissingTopics, gone_ms


@pytest.mark.parametrize(("session_ms", "expected"), [(6_000, 30_000), (10_000, 30_000), (20_000, 60_000)])
def test_missing_source_is_tolerated_for_half_a_minute_or_three_sessions(session_ms: int, expected: int) -> None:
    assert expected == gone_ms(session_ms)


def test_source_is_gone_if_every_answer_missed_it_for_the_limit() -> None:
    missing_topics = MissingTopics(1_000)
    found = [missing_topics.observe(now_ms, {"a"}) for now_ms in (0, 999, 1_000)]

    assert [([], []), ([], []), ([], ["a"])] == found


def test_recreated_source_is_reported_once_and_starts_anew() -> None:
    missing_topics = MissingTopics(1_000)
    found = [
        missing_topics.observe(now_ms, missing) for now_ms, missing in ((0, {"a"}), (900, set()), (901, set()), (1_000, {"a"}))
    ]

    assert [([], []), (["a"], []), ([], []), ([], [])] == found
