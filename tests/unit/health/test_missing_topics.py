"""How long a source that was deleted is waited for."""

from __future__ import annotations

import pytest

from streams_app.health.dependency_health import MissingTopics, gone_ms


@pytest.mark.parametrize(("session_ms", "expected"), [(6_000, 30_000), (10_000, 30_000), (20_000, 60_000)])
def test_a_source_is_waited_for_half_a_minute_or_three_sessions(session_ms: int, expected: int) -> None:
    assert expected == gone_ms(session_ms)


def test_a_source_is_gone_once_it_was_missing_in_every_answer_for_so_long() -> None:
    vanished = MissingTopics(1_000)
    found = [vanished.observe(now_ms, {"a"}) for now_ms in (0, 999, 1_000)]

    assert [([], []), ([], []), ([], ["a"])] == found


def test_a_source_that_was_made_again_is_said_once_and_begins_anew() -> None:
    vanished = MissingTopics(1_000)
    found = [vanished.observe(now_ms, missing) for now_ms, missing in ((0, {"a"}), (900, set()), (901, set()), (1_000, {"a"}))]

    assert [([], []), (["a"], []), ([], []), ([], [])] == found
