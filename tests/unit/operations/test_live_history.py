"""Text about a page of a live view that has no items."""

from __future__ import annotations

import pytest

from streams_app.operations.live_history import PageHistory, history_text
from streams_app.settings import LiveView

VIEW = LiveView.model_validate({"name": "news", "kind": "count", "source": "events", "page": "p", "item": "i", "expiry": "1h"})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (PageHistory(None, 7), "no such page was ever seen: events has 7 records, none of this page"),
        (PageHistory(None, 1_000, is_complete=False), "no such page was seen lately: of the newest 1,000 records of events, none"),
        (PageHistory(0, 7), "empty: the newest record of this page is of 1970-01-01 00:00:00Z, and its items expired or were"),
        (PageHistory(fault="Kafka is away"), "whether such a page was ever seen is not known: Kafka is away"),
    ],
)
def test_unknown_page_is_told_from_an_empty_one(found: PageHistory, expected: str) -> None:
    assert history_text(found, VIEW).startswith(expected)
