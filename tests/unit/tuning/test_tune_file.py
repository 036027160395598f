"""JSON lines for tuning: times, unusable lines, folds, and the messages if no events are left."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from streams_app.settings import Limits
from tests.unit.tuning.events_file import BEGIN_MS, NOW_MS, Read, line, written

# Times


@pytest.mark.parametrize(
    "ts",
    [
        pytest.param(1_700_000_000, id="seconds"),
        pytest.param(1_700_000_000.0, id="seconds as a fraction"),
        pytest.param(1_700_000_000_000, id="milliseconds"),
        pytest.param("1700000000000", id="milliseconds as text"),
        pytest.param("2023-11-14T22:13:20Z", id="ISO in UTC"),
        pytest.param("2023-11-14T23:13:20+01:00", id="ISO of a zone"),
        pytest.param("2023-11-14 22:13:20", id="ISO without a zone"),
    ],
)
def test_time_is_parsed_in_any_supported_notation(tmp_path: Path, ts: Any) -> None:
    read = Read(written(tmp_path, [line(ts)]))

    assert [BEGIN_MS] == read.scores
    assert {} == read.tally.rejected


@pytest.mark.parametrize("ts", [True, [], "yesterday", -5, 1_700_000_000_000_000, "99999-01-01", 1e300])
def test_invalid_time_is_counted_with_its_line(tmp_path: Path, ts: Any) -> None:
    read = Read(written(tmp_path, [line(), line(ts)]))

    assert 1 == read.columns.events
    assert {"bad-time": 1} == read.tally.rejected
    assert read.tally.examples["bad-time"].startswith("line 2: ")


def test_time_is_read_from_the_end_of_its_path(tmp_path: Path) -> None:
    read = Read(written(tmp_path, [line(meta={"at": {"ms": BEGIN_MS + 5}}), line(meta=3)]), time="meta.at.ms")

    assert [BEGIN_MS + 5] == read.scores
    assert {"no-time": "line 2: no field 'meta.at.ms'"} == read.tally.examples


def test_backward_times_take_the_newest_previous_one_and_are_reported(tmp_path: Path) -> None:
    read = Read(written(tmp_path, [line(BEGIN_MS), line(BEGIN_MS + 500), line(BEGIN_MS + 100)]))

    assert [BEGIN_MS, BEGIN_MS + 500, BEGIN_MS + 500] == read.scores
    assert [
        "older than a line before them, whose time they get, as in a worker: 1 lines (33.3%); sort the file by time unless it is a "
        "log"
    ] == read.tally.remarks


def test_future_time_counts_as_now_and_is_reported(tmp_path: Path) -> None:
    read = Read(written(tmp_path, [line(NOW_MS + 10_000)]))

    assert [NOW_MS] == read.scores
    assert ["with a time in the future, which counts as now: 1 lines"] == read.tally.remarks


# Unusable lines


def test_unfoldable_lines_are_counted_by_reason_and_the_others_are_read(tmp_path: Path) -> None:
    bad = [b"{broken", b"[1]", b'{"ts": 1, "names": ["x"]}', b'{"ts": 1, "id": "a"}', b"\xff\xfe", b'{"id": "a", "names": ["x"]}']
    read = Read(written(tmp_path, [line(), *bad, line()]))

    assert 2 == read.columns.events
    assert {"not-json": 2, "not-an-object": 1, "no-group": 1, "no-changed": 1, "no-time": 1} == read.tally.rejected
    assert read.tally.examples["not-json"].startswith("line 2: ")
    assert read.tally.examples["no-changed"].startswith("line 5: ")


def test_empty_lines_and_a_byte_order_mark_are_no_events(tmp_path: Path) -> None:
    read = Read(written(tmp_path, [b"\xef\xbb\xbf" + line(), b"", b"  ", line() + b"\r"]))

    assert (2, {}) == (read.columns.events, read.tally.rejected)


def test_last_line_without_a_line_break_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line() + b"\n" + line())

    assert 2 == Read(path).columns.events


class Counted(io.BytesIO):
    """Records the size of the longest read."""

    longest = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        piece = super().readline(size)
        self.longest = max(self.longest, len(piece))
        return piece

    def peek(self, size: int) -> bytes:
        return self.getvalue()[:size]


def test_overlong_line_is_rejected_without_being_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    most = Limits(value_bytes=1_000)
    stream = Counted(b"\n".join([line(), line(pad="x" * 50_000), line(pad="x" * 1_001), line()]))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
    read = Read(Path("-"), limits=most)

    assert (2, {"too-large": 2}) == (read.columns.events, read.tally.rejected)
    assert read.tally.examples["too-large"].startswith("line 2: ")
    assert stream.longest <= 1_002


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_line_as_long_as_the_limit_is_read(tmp_path: Path, ending: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes((line() + ending) * 3)

    assert 3 == Read(path, limits=Limits(value_bytes=len(line()))).columns.events


# Folds


def test_fold_by_functions_reads_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, [line(id="A"), line(id="a"), line(id="skip")])
    read = Read(
        path,
        group_key=lambda event: event["id"].lower(),
        changed=lambda event: event["names"],
        source_filter=lambda event: event["id"] != "skip",
    )

    assert 2 == read.columns.events
    assert 1 == np.count_nonzero(read.columns.firsts)


def test_fold_of_change_events_reads_a_file(tmp_path: Path) -> None:
    after = {"id": 1, "status": "paid"}
    envelope = {"ts_ms": BEGIN_MS, "op": "u", "before": {"id": 1, "status": "new"}, "after": after}
    lines = [envelope, {"ts_ms": BEGIN_MS}, envelope | {"before": None, "after": None}, {"payload": envelope, "schema": {}}]
    read = Read(
        written(tmp_path, [orjson.dumps(one) for one in lines]), time="ts_ms", group_key="id", changed="@columns", format="debezium"
    )

    assert (1, {"wrong-format": 1, "no-time": 1}) == (read.columns.events, read.tally.rejected)


def test_field_may_replace_the_record_key(tmp_path: Path) -> None:
    read = Read(written(tmp_path, [line(), line(id=None), line(id=7)]), group_key="@key", key="id")

    assert (2, {"no-group": 1}) == (read.columns.events, read.tally.rejected)


# Ranges


def test_range_lies_between_two_moments(tmp_path: Path) -> None:
    path = written(tmp_path, [line(BEGIN_MS + ms) for ms in (0, 100, 200, 150, 300)])

    assert [100, 200, 200] == [score - BEGIN_MS for score in Read(path, from_ms=BEGIN_MS + 100, to_ms=BEGIN_MS + 300).scores]
    assert [300] == [score - BEGIN_MS for score in Read(path, from_ms=BEGIN_MS + 201).scores]


def test_empty_range_reports_the_times_of_the_file(tmp_path: Path) -> None:
    read = Read(written(tmp_path, [line(BEGIN_MS), line(BEGIN_MS + 5_000)]), from_ms=BEGIN_MS + 9_000)

    assert (
        "no line that can be folded lies in the range of --from and --to; the times of the 2 outside it go from 2023-11-14 "
        "22:13:20Z to 2023-11-14 22:13:25Z"
    ) == read.advice


# Advice if no events are left


@pytest.mark.parametrize(
    ("lines", "advice"),
    [
        ([], "there is nothing in it"),
        ([b"a,b", b"1,2"], "none of its 2 lines is a JSON object, and each should be one event"),
        (
            [b'{"created": 1700000000, "likes": 3, "id": "a"}'],
            "no line has a time in 'ts'; the fields are created, likes, id: try --time created",
        ),
        ([b'{"likes": 3}'], "no line has a time in 'ts'; the fields are likes"),
        ([b'{"ts": 1, "user": 3}'], "none of its 1 lines can be folded, see the reasons above; the fields are ts, user"),
    ],
)
def test_unusable_file_suggests_a_fix(tmp_path: Path, lines: list[bytes], advice: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(each + b"\n" for each in lines))

    assert advice == Read(path).advice
