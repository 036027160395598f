"""What a fold does, in the words of its page."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app import Fold
from streams_app.console.pages.fold import definition_of


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dedupe_by": "event_id"}, "events whose id (event_id) is in their open group already"),
        ({"dedupe_by": "header:event-id"}, "events whose id (header:event-id) is in their open group already"),
        ({"dedupe_by": str}, "events whose id (a function) is in their open group already"),
    ],
)
def test_page_of_a_fold_says_which_events_it_skips(options: dict[str, Any], text: str) -> None:
    fold = Fold(**{"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "1s"} | options)

    assert [text] == [rule.text for rule in definition_of(fold) if rule.what == "skips"]


def test_page_of_a_fold_shows_the_limits_of_a_quiet_period_that_sets_itself() -> None:
    quiet_period = {"auto": "knee", "at_least": "10s", "at_most": "1h"}
    fold = Fold(name="f", source="s", group_key="id", changed="m", quiet_period=quiet_period)

    assert any("once it was quiet for a time that sets itself, from 10s to 1h" in rule.text for rule in definition_of(fold))
