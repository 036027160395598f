"""The number of groups sent to one script adapts to the duration of earlier scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.shard.range_progress import FIRST_GROUPS, MAX_GROUPS, SCRIPT_WORK, ScriptSizing


def sized(groups: int) -> ScriptSizing:
    sizing = ScriptSizing()
    sizing.groups = groups
    return sizing


@pytest.mark.parametrize(
    ("before", "taken", "work", "after"),
    [
        pytest.param(FIRST_GROUPS, 100, SCRIPT_WORK, 101, id="as many as fill a script, and one more"),
        pytest.param(FIRST_GROUPS, 100, SCRIPT_WORK // 2, 201, id="what costs half as much is sent twice as often"),
        pytest.param(FIRST_GROUPS, 100, 4 * SCRIPT_WORK, 26, id="what costs more, less often"),
        pytest.param(10, 10, 1, 20, id="at most twice as many as before"),
        pytest.param(MAX_GROUPS, MAX_GROUPS, 1, MAX_GROUPS, id="at most the maximum"),
        pytest.param(FIRST_GROUPS, 1, 10**9, 1, id="no less than one"),
        pytest.param(FIRST_GROUPS, 0, SCRIPT_WORK, FIRST_GROUPS, id="a script without groups is ignored"),
        pytest.param(FIRST_GROUPS, 5, 0, 2 * FIRST_GROUPS, id="work of nothing is not divided by"),
    ],
)
def test_script_size_is_learned_from_script_durations(before: int, taken: int, work: int, after: int) -> None:
    sizing = sized(before)
    sizing.learn(taken, work)

    assert after == sizing.groups


@given(st.integers(1, 10_000), st.integers(1, MAX_GROUPS))
def test_script_size_converges_to_the_target_duration(cost: int, before: int) -> None:
    sizing = sized(before)
    for _ in range(15):
        taken = min(sizing.groups, -(-SCRIPT_WORK // cost))  # a script ends by itself
        sizing.learn(taken, taken * cost)

    assert min(MAX_GROUPS, SCRIPT_WORK // cost) <= sizing.groups <= min(MAX_GROUPS, SCRIPT_WORK // cost + 2)
