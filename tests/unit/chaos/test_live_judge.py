"""The judge of live views in ``make chaos`` detects violations and accepts correct states."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.live.clients import Shown
from tests.chaos.live.judge import OLDEST_MS, RECENT_MS, Judge, Produced

T0 = 1_700_000_000_000


def judged(*shown: tuple[int, dict[str, Any]], acked_ms: int | None = T0 + 20) -> Judge:
    """Judge messages of a page to which item a was added first, and item b soon after."""
    events = [Produced("a", T0 - 1_000, False, T0 - 1_000, T0 - 990, 0), Produced("b", T0, False, T0, acked_ms, 1)]
    judge = Judge({"p": events})
    for at_ms, state in shown:
        judge.judge(Shown(at_ms, "p", {"view": "supporters", "state": "ok", **state}))
    return judge


def test_age_of_a_state_counts_from_the_next_change() -> None:
    judge = judged((T0 + 500, {"count": 2}), (T0 + 500, {"count": 1}), (T0 + RECENT_MS + 500, {"count": 1}))

    assert judge.wrong == []
    assert judge.ages_ms[0] == 0
    assert 0 < judge.ages_ms[1] < RECENT_MS < judge.ages_ms[2] < OLDEST_MS
    assert round(judge.share_of_old, 3) == 0.333


@pytest.mark.parametrize(
    ("at_ms", "state", "why"),
    [
        (T0 + 500, {"count": 3}, "never had"),
        (T0 + 500, {"view": "news", "count": 2, "items": [{"item": "a", "time_ms": T0 - 1_000}]}, "never had"),
        (T0 + OLDEST_MS + 500, {"count": 1}, "has no label"),
        (T0 + 500, {"state": "behind", "count": 3}, "never had"),
        (T0 + 500, {"state": "reading", "count": 2}, "values while"),
        (T0 + 500, {"state": "incomplete", "count": 2}, "is incomplete"),
    ],
)
def test_state_that_was_never_valid_or_is_old_without_a_label_is_a_violation(at_ms: int, state: dict[str, Any], why: str) -> None:
    (wrong,) = judged((at_ms, state)).wrong

    assert why in wrong


@pytest.mark.parametrize(("beat_ms", "is_wrong"), [(None, True), (T0 + OLDEST_MS + 1_000, True), (T0 + OLDEST_MS - 500, False)])
def test_time_between_hub_and_browser_does_not_make_a_state_old(beat_ms: int | None, is_wrong: bool) -> None:
    judge = judged()
    judge.judge(Shown(T0 + OLDEST_MS + 1_000, "p", {"view": "supporters", "state": "ok", "count": 1}, beat_ms))

    assert bool(judge.wrong) is is_wrong


def test_old_state_with_a_label_is_accepted() -> None:
    judge = judged((T0 + OLDEST_MS + 500, {"state": "behind", "count": 1}))

    assert (judge.wrong, judge.ages_ms, judge.labelled) == ([], [], {"behind": 1})


@pytest.mark.parametrize(
    "judge",
    [
        judged(),
        judged((T0 + 500, {"state": "reading"})),
        judged((T0 + 500, {"state": "behind", "count": 2})),
        judged((T0 + 500, {"view": "visitors", "count": 2})),
        judged((T0 + 500, {"count": 2}), acked_ms=None),
    ],
    ids=["no messages", "only rebuilds", "only labelled as behind", "only presence", "an event may or may not be in the log"],
)
def test_run_that_judged_nothing_is_a_violation(judge: Judge) -> None:
    assert judge.wrong == []
    judge.require(1)

    assert len(judge.wrong) == 1
    assert "only 0 states were judged" in judge.wrong[0]


def test_run_that_judged_enough_is_accepted() -> None:
    judge = judged((T0 + 500, {"count": 2}))
    judge.require(1)

    assert judge.wrong == []
