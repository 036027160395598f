"""Which processors receive an event that was replayed from the dead letters."""

from __future__ import annotations

import pytest

from streams_app.folding.reading.reader import RangeFaults
from streams_app.folding.reading.replay_routing import REPLAY_HEADER, RoutedRange, replay_target
from tests.helpers.kafka.records import Raw


def replayed_record(destination: bytes | None) -> Raw:
    return Raw(3, headers=(("trace", b"1"), (REPLAY_HEADER, destination)))


@pytest.mark.parametrize(
    ("destination", "folds"),
    [
        pytest.param(b"social/a", ["social a"], id="one fold of one application"),
        pytest.param(b"social/b", ["social b"], id="the other one"),
        pytest.param(b"mirror/a", ["mirror a"], id="a fold of that name in another application"),
        pytest.param(b"a", ["mirror a", "social a"], id="without an application"),
        pytest.param(b"social/old", [], id="a fold that is no longer there"),
        pytest.param(b"", [], id="no target"),
        pytest.param(None, [], id="a header without a value"),
    ],
)
def test_replayed_event_is_read_only_by_the_fold_and_application_it_names(destination: bytes | None, folds: list[str]) -> None:
    records = [replayed_record(destination)]

    found = [
        f"{app_id} {fold}"
        for app_id in ("mirror", "social")
        for fold in ("a", "b")
        if RoutedRange(app_id, ["a", "b"], records, None).records_for(fold, RangeFaults())[0]
    ]

    assert folds == found


def test_event_without_a_destination_is_read_by_every_fold() -> None:
    records = [Raw(0, headers=(("trace", b"1"),)), Raw(1)]

    assert (records, ["x", "y"]) == RoutedRange("social", ["a"], records, ["x", "y"]).records_for("a", RangeFaults())
    assert ([Raw(0)], ["x"]) == RoutedRange("social", ["a"], [Raw(0)], ["x"]).records_for("a", RangeFaults())


@pytest.mark.parametrize(
    ("destination", "addressees"),
    [
        pytest.param(b"social/old", ["old"], id="renamed"),
        pytest.param(b"social/\xff", ["\\xff"], id="not UTF-8"),
        pytest.param(b"social/", [""], id="no name at all"),
        pytest.param(replay_target("social", "a"), [], id="there"),
        pytest.param(b"mirror/old", [], id="of another application"),
        pytest.param(b"socials/old", [], id="of an application whose name begins like ours"),
        pytest.param(b"old", [], id="without an application"),
    ],
)
def test_event_replayed_for_a_removed_fold_is_a_dead_letter_of_that_fold(destination: bytes, addressees: list[str]) -> None:
    records = [Raw(0), replayed_record(destination)]
    first, second = RangeFaults(), RangeFaults()

    RoutedRange("social", ["a", "b"], records, None).records_for("a", first)
    RoutedRange("social", ["a", "b"], records, None).records_for("b", second)

    assert (addressees, []) == ([rejected.addressee for rejected in first.rejected], second.rejected)
    assert {"unknown-fold"} >= {rejected.reason for rejected in first.rejected}
