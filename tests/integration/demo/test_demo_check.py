"""The check at the end of a demo: the expected content of the read store, and every deviation from it."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from streams_app.demo.explaining import differences as differences_of_record
from streams_app.demo.load import Update
from streams_app.demo.recomputing import RecomputeResult, undone
from streams_app.demo.write_side import WriteSide, differences
from streams_app.fold import Fold
from streams_app.journal.core.entry import Row
from streams_app.journal.reading.entries import Entry
from streams_app.operations.folded_events import RawEvent
from streams_app.read_store.sqlite.store import SqliteStore
from streams_app.settings import Limits

FOLD = Fold.model_validate({"name": "f", "source": "events", "group_key": "account_id", "changed": "metrics", "quiet_period": "1s"})


def update(account: str, post: str, **metrics: object) -> Update:
    return Update(0.0, account.encode(), json.dumps({"account_id": account, "post_id": post, "metrics": metrics}).encode())


@pytest.fixture
def write_side(tmp_path: Path) -> Iterator[WriteSide]:
    made = WriteSide(tmp_path / "write.db", FOLD, Limits())
    made.write([update("a", "p1", likes=3, shares=1), update("a", "p2", likes=4), update("b", "p1", likes=0.5)])
    made.write([update("a", "p1", likes=5), Update(0.0, None, b"not json"), update("b", "p2", likes=0.25)])
    yield made
    made.close()


@pytest.fixture
async def read_db(tmp_path: Path) -> Path:
    """Return a correct read store."""
    path = tmp_path / "read.db"
    store = SqliteStore(f"sqlite:///{path}", "folded_values", "dashboard")
    await store.initialise()
    await store.close()
    change(path, "INSERT INTO folded_values VALUES ('f','a','likes',9,1,1), ('f','a','shares',1,1,1), ('f','b','likes',0.75,1,1)")
    return path


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_expectation_is_the_sum_of_the_latest_values_of_the_posts(write_side: WriteSide) -> None:
    assert {("a", "likes"): 9, ("a", "shares"): 1, ("b", "likes"): 0.75} == write_side.expected()
    assert write_side.rejected == 1


def test_write_database_contains_the_expected_values(write_side: WriteSide, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "write.db")) as connection:
        found = connection.execute("SELECT account_id, metric, SUM(value) FROM post_metrics GROUP BY 1, 2").fetchall()

    assert {(account, metric): value for account, metric, value in found} == write_side.expected()


def test_correct_read_store_has_no_differences(write_side: WriteSide, read_db: Path) -> None:
    assert [] == differences(read_db, "folded_values", write_side.expected())


@pytest.mark.parametrize(
    ("tampering", "expected"),
    [
        ("UPDATE folded_values SET value = 8 WHERE group_key = 'a' AND name = 'likes'", r"a\.likes: .*has 8, .*give 9"),
        ("UPDATE folded_values SET value = '9' WHERE group_key = 'a' AND name = 'likes'", r"a\.likes: .*give 9"),
        ("UPDATE folded_values SET value = NULL WHERE name = 'shares'", r"a\.shares: .*has None, .*give 1"),
        ("DELETE FROM folded_values WHERE group_key = 'b'", r"b\.likes: .*has None, .*give 0\.75"),
        ("UPDATE folded_values SET value = 0.7501 WHERE group_key = 'b'", r"b\.likes: .*has 0\.7501"),
        ("INSERT INTO folded_values VALUES ('f', 'c', 'likes', 1, 1, 1)", r"c\.likes: in the read store, but in no event"),
    ],
)
def test_corrupted_read_store_is_detected(write_side: WriteSide, read_db: Path, tampering: str, expected: str) -> None:
    change(read_db, tampering)
    found = differences(read_db, "folded_values", write_side.expected())

    assert 1 == len(found)
    assert re.search(expected, found[0])


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (RecomputeResult(frozenset({"r1", "r2"}), 1, {"a": 10, "b": 0.75}), []),
        (RecomputeResult(frozenset({"r1"}), 1, {"a": 10, "b": 0.75}), ["1 folded record not done by the subscriber"]),
        (
            RecomputeResult(frozenset({"r1", "r2", "r3"}), 1, {"a": 10, "b": 0.75}),
            ["1 record processed by the subscriber, but never folded"],
        ),
        (
            RecomputeResult(frozenset({"r1", "r2"}), 1, {"a": 9, "b": 0.75}),
            ["a: the subscriber has the score 9, the events give 10"],
        ),
        (RecomputeResult(frozenset({"r1", "r2"}), 1, {"a": 10}), ["b: the subscriber has the score None, the events give 0.75"]),
    ],
)
def test_unfinished_work_of_the_subscriber_is_detected(write_side: WriteSide, done: RecomputeResult, expected: list[str]) -> None:
    assert expected == undone(["r1", "r2"], write_side.expected(), done)


def test_sums_of_fractions_may_differ_in_their_last_digits(read_db: Path) -> None:
    expected = {("a", "likes"): 9, ("a", "shares"): 1, ("b", "likes"): 0.75 + 1e-15}

    assert [] == differences(read_db, "folded_values", expected)


def raw(offset: int, *changed: str) -> RawEvent:
    return RawEvent(Entry.of(Row(b"sa", offset, 0, b"{}"), 0, f"0-{offset}"), changed)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ([raw(1, "likes"), raw(3, "likes", "shares")], []),
        ([raw(1, "likes", "shares")], ["f:events:0:1-3: 2 events in the record, 1 in the journal"]),
        ([raw(1, "likes"), raw(2, "shares"), raw(3, "likes")], ["f:events:0:1-3: 2 events in the record, 3 in the journal"]),
        (
            [raw(1, "likes"), raw(3, "saves")],
            ["f:events:0:1-3: the record says that likes, shares changed, the events in the journal likes, saves"],
        ),
    ],
    ids=["equal", "fewer", "more", "other names"],
)
def test_record_unexplained_by_its_raw_events_is_detected(taken: list[RawEvent], expected: list[str]) -> None:
    record = {"account_id": "a", "metrics": ["likes", "shares"], "fold": {"id": "f:events:0:1-3", "events": 2}}

    assert expected == differences_of_record(record, ["likes", "shares"], taken)
