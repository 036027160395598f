"""An event whose id its open group has already changes nothing: the rule in the test kit, for each kind of fold."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app import Fold
from streams_app.testing import FoldTester

KEPT: dict[str, tuple[Any, Any]] = {
    "names": ("names", ["x", "y"]),
    "last": ("last", {"x": 2, "y": 3}),
    "aggregates": ({"x": "sum", "y": "count"}, {"x": 3, "y": 1}),
}


def kit(**options: Any) -> FoldTester:
    given = {"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "10s", "dedupe_by": "e"}
    return FoldTester(Fold(**{**given, **options}))


def send(tester: FoldTester, event_id: str, *, group: str = "a", **changed: Any) -> None:
    tester.send({"id": group, "e": event_id, "m": changed or {"x": 1}})


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("backlog", ["merge", "sessions"])
def test_duplicate_adds_nothing_to_the_record(kind: str, backlog: str) -> None:
    keep, expected = KEPT[kind]
    tester = kit(keep=keep, backlog=backlog)
    for event_id, changed in (("1", {"x": 1}), ("2", {"x": 2}), ("1", {"x": 1}), ("3", {"y": 3}), ("2", {"z": 9})):
        tester.send({"id": "a", "e": event_id, "m": changed})
    (record,) = tester.advance("11s")

    assert expected == record.value["m"]
    assert (3, 2, []) == (record.value["fold"]["events"], tester.duplicates, tester.dead_letters)
    assert "f:s:0:0-3" == record.fold_id


@pytest.mark.parametrize("backlog", ["merge", "sessions"])
def test_duplicate_is_not_kept(backlog: str) -> None:
    tester = kit(keep="events", changed="", fields=["e"], backlog=backlog)
    for event_id in "12123":
        send(tester, event_id)
    (record,) = tester.advance("11s")

    assert [{"e": "1"}, {"e": "2"}, {"e": "3"}] == record.value["events"]


@pytest.mark.parametrize("backlog", ["merge", "sessions"])
def test_duplicate_does_not_extend_the_quiet_period(backlog: str) -> None:
    tester = kit(backlog=backlog)
    send(tester, "1")
    tester.advance("8s")
    send(tester, "1")

    assert [] == tester.advance("2s")
    assert ["quiet"] == [record.value["fold"]["reason"] for record in tester.advance("1s")]


def test_duplicate_in_a_backlog_does_not_join_sessions() -> None:
    tester = kit(backlog="sessions")
    at = tester.now_ms - 3_600_000
    events = [(at, "1"), (at + 8_000, "1"), (at + 12_000, "2"), (at + 22_000, "2"), (at + 22_001, "3")]
    tester.catch_up([(at_ms, {"id": "a", "e": event_id, "m": ["x"]}) for at_ms, event_id in events])

    assert [(1, "0-0"), (1, "2-2"), (1, "4-4")] == [
        (record.value["fold"]["events"], record.fold_id.split(":")[-1]) for record in tester.records
    ]


def test_event_that_comes_after_the_quiet_period_is_no_duplicate() -> None:
    tester = kit(backlog="sessions")
    at = tester.now_ms - 3_600_000
    tester.catch_up([(at, {"id": "a", "e": "1", "m": ["x"]}), (at + 10_001, {"id": "a", "e": "1", "m": ["x"]})])

    assert [1, 1] == [record.value["fold"]["events"] for record in tester.records]
    assert 0 == tester.duplicates


@pytest.mark.parametrize(
    ("options", "close"),
    [
        ({}, lambda tester: tester.advance("11s")),
        ({}, lambda tester: tester.flush()),
        ({}, lambda tester: tester.drop(b"a")),
        ({"max_events": 1}, lambda tester: None),
        ({"max_changed": 1}, lambda tester: send(tester, "2", y=1)),
    ],
    ids=["quiet", "flush", "drop", "max_events", "max_changed"],
)
def test_ids_are_forgotten_when_the_group_is_closed(options: dict[str, Any], close: Any) -> None:
    tester = kit(**options)
    send(tester, "1")
    close(tester)
    send(tester, "1")

    assert 0 == tester.duplicates


def test_groups_have_their_own_ids() -> None:
    tester = kit()
    send(tester, "1", group="a")
    send(tester, "1", group="b")

    assert [1, 1] == [record.value["fold"]["events"] for record in tester.advance("11s")]


def test_duplicate_neither_closes_its_group_nor_exceeds_a_bound() -> None:
    tester = kit(close_when={"m.done": [True]}, max_changed=2, max_events=3)
    send(tester, "1", x=1, y=1)
    send(tester, "1", v=1, w=1)
    send(tester, "1", done=True)
    send(tester, "2", x=1)

    assert ([], 2) == (tester.records, tester.duplicates)


def test_header_has_the_id() -> None:
    tester = kit(dedupe_by="header:event-id")
    for event_id in (b"1", b"2", b"1"):
        tester.send({"id": "a", "m": ["x"]}, headers={"event-id": event_id})
    tester.send({"id": "a", "m": ["x"]})

    assert [2] == [record.value["fold"]["events"] for record in tester.advance("11s")]
    assert (1, ["no-id"]) == (tester.duplicates, [rejected.reason for rejected in tester.dead_letters])


def test_quiet_period_of_a_duplicate_does_not_count() -> None:
    tester = kit(quiet_period={"field": "w", "default": "10s", "at_most": "1h"})
    tester.send({"id": "a", "e": "1", "m": ["x"]})
    tester.send({"id": "a", "e": "1", "m": ["x"], "w": "1h"})

    assert ["quiet"] == [record.value["fold"]["reason"] for record in tester.advance("11s")]
