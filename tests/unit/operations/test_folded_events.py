"""Which journals contain the events of a fold."""

from __future__ import annotations

import pytest

from streams_app.envelopes import Format
from streams_app.fold import RECORD_KEY, Fold
from streams_app.operations.folded_events import has_key_of
from streams_app.settings import JournalSettings


@pytest.mark.parametrize(
    ("of_journal", "of_fold", "key", "found"),
    [
        ("json", "json", "id", True),
        ("avro", "avro", "id", True),
        ("json", "avro", "id", False),
        ("debezium", "json", "id", False),
        ("json", "debezium", RECORD_KEY, True),
    ],
)
def test_journal_has_the_events_of_a_group_if_it_reads_its_key_by_the_format_of_the_fold(
    of_journal: Format, of_fold: Format, key: str, found: bool
) -> None:
    journal = JournalSettings(name="j", source="s", key=key, format=of_journal)
    fold = Fold(name="f", source="s", output="o", group_key=key, changed="m", quiet_period="1s", format=of_fold)

    assert found == has_key_of(journal, fold)
