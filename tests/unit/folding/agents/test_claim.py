"""Which logs a claim accepts."""

from __future__ import annotations

import pytest

from streams_app.folding.agents.claim import is_recreated


@pytest.mark.parametrize(
    ("folded", "present", "expected"),
    [
        pytest.param("one", "one", False, id="the same topic"),
        pytest.param("one", "two", True, id="recreated"),
        pytest.param("", "two", False, id="a state of before ids were kept adopts what is there"),
        pytest.param("one", "", False, id="a broker without ids cannot tell"),
    ],
)
def test_topic_with_another_id_counts_as_recreated(folded: str, present: str, expected: bool) -> None:
    assert expected == is_recreated(folded, present)
