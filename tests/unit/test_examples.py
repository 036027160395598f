"""The programs of examples/ do what they say."""

from __future__ import annotations

from examples import social
from streams_app.testing import FoldTester


def test_functions_of_the_example_fold_its_events_under_the_names_they_are_given() -> None:
    kit = FoldTester(social.app.settings.fold("account-metrics"))
    for value in (b"Anna;p7;likes=12;shares=3", b"anna;p8;likes=1;comments=0", b"anna;test;spam=1", b"ben;p9;likes=many", b"ben"):
        kit.send(value)
    (record,) = kit.advance("16m")

    assert {"account_id": "anna", "metrics": {"likes": 1, "shares": 3}} == {
        name: held for name, held in record.value.items() if name != "fold"
    }
    assert 2 == record.value["fold"]["events"]
    assert ["changed: ValueError", "decode: ValueError"] == [
        ": ".join(letter.detail.split(": ")[:2]) for letter in kit.dead_letters
    ]
