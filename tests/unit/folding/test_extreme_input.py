"""Extreme input that stopped a worker once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.core.chunks import (
    MAX_EVENTS,
    MAX_HOLDS,
    MAX_NAMES,
    MAX_NAMES_OF_RUNS,
    MAX_NEAR_EVENTS,
    MAX_RUNS,
    MAX_WIDE_RUNS,
)
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.reading.reader import EventReader, decode_all
from streams_app.read_store.core.record import Expected, Rejected, parse
from streams_app.settings import Limits, Settings
from tests.records import Raw
from tests.scripts import chunks_of

DEEP = b"[" * 300 + b"]" * 300
FOLD: dict[str, Any] = {"source": "s", "group_key": "g", "changed": "c", "quiet_period": "1s"}


def test_value_too_deep_to_be_stored_is_rejected_and_not_raised() -> None:
    fold = Fold(name="f", keep="last", **FOLD)
    records = [Raw(7, value=b'{"g": "x", "c": {"a": ' + DEEP + b"}}")]

    reading = EventReader(fold, Limits()).read(records, decode_all(records, Limits()))

    assert ["no-changed"] == [refused.reason for refused in reading.rejected]
    assert reading.rejected[0].record is records[0]


def test_carried_value_too_deep_to_be_stored_is_rejected_and_not_raised() -> None:
    value = b'{"g": "x", "c": {"a": ' + DEEP + b'}, "fold": {"name": "f", "version": 1}}'

    assert Rejected("a value is nested too deeply") == parse(b"x", value, Expected("f", "c", ("g",), carries_values=True))


@pytest.mark.parametrize("keeps_values", [True, False])
def test_group_with_ever_new_names_is_split_into_chunks(keeps_values: bool) -> None:
    events = [FoldEvent(i, i * 10, b"sg", {f"n{i}-{j}": 1 for j in range(256)}) for i in range(400)]

    chunks = list(chunks_of(events, 500, keeps_values=keeps_values))

    held = [sum(len(run.changed) for runs in chunk.groups.values() for run in runs) for chunk in chunks]
    assert 400 * 256 == sum(held)
    assert max(held) <= MAX_NAMES + 256
    assert 500 == chunks[-1].to


def test_group_with_a_gap_before_every_event_is_split_into_chunks() -> None:
    events = [FoldEvent(i, i * 10, b"sg", {}) for i in range(2 * MAX_RUNS + 1)]

    chunks = list(chunks_of(events, len(events) - 1, session_gap_ms=1))

    assert [MAX_RUNS, MAX_RUNS, 1] == [len(chunk.groups[b"sg"]) for chunk in chunks]


def test_group_with_gaps_and_many_names_is_split_into_more_chunks() -> None:
    names = {f"n{number}": 1 for number in range(MAX_NAMES_OF_RUNS // MAX_WIDE_RUNS)}
    events = [FoldEvent(i, i * 10, b"sg", names) for i in range(2 * MAX_WIDE_RUNS)]

    chunks = list(chunks_of(events, len(events) - 1, session_gap_ms=1))

    assert [MAX_WIDE_RUNS] * 2 == [len(chunk.groups[b"sg"]) for chunk in chunks]


@pytest.mark.parametrize(
    ("hold_ms", "expected"),
    [(10 * MAX_NEAR_EVENTS // MAX_HOLDS - 1, [MAX_NEAR_EVENTS] * 2), (10 * MAX_NEAR_EVENTS, [2 * MAX_NEAR_EVENTS])],
    ids=["very many", "few"],
)
def test_run_with_too_many_ended_holds_is_split(hold_ms: int, expected: list[int]) -> None:
    events = [FoldEvent(i, i * 10, b"sg", {}) for i in range(2 * MAX_NEAR_EVENTS)]

    assert expected == [chunk.events for chunk in chunks_of(events, len(events) - 1, hold_ms=hold_ms)]


def test_run_with_more_names_than_a_group_allows_is_split() -> None:
    events = [FoldEvent(i, i, b"sg", {f"a{i}": 1, f"b{i}": 1}) for i in range(2 * MAX_NEAR_EVENTS)]

    found = [
        [chunk.events for chunk in chunks_of(events, len(events) - 1, max_changed=most)]
        for most in (2 * MAX_NEAR_EVENTS - 1, 4 * MAX_NEAR_EVENTS)
    ]

    assert [[MAX_NEAR_EVENTS] * 2, [2 * MAX_NEAR_EVENTS]] == found


def test_group_with_very_many_events_is_split_into_chunks() -> None:
    events = [FoldEvent(i, i, b"sg", {}) for i in range(2 * MAX_EVENTS + 1)]

    chunks = list(chunks_of(events, len(events) - 1))

    assert [MAX_EVENTS, MAX_EVENTS, 1] == [chunk.events for chunk in chunks]


@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        ('quiet_period = "99999999999999d"', {}, "too long a duration"),
        (f'quiet_period = "{"9" * 400}s"', {}, "too long a duration"),
        ('quiet_period = "1s"\nname = "g"', {}, "folds.f.name: unknown key"),
        ('quiet_period = "1s"', {"STREAMS_APP_KAFKA_PARTITIONS": "4"}, "kafka is not a table"),
    ],
)
def test_settings_beyond_their_bounds_are_faults(text: str, environ: dict[str, str], expected: str, tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    section = 'kafka = "x"\n' if environ else ""
    path.write_text(f'app_id = "a"\n{section}[folds.f]\nsource = "s"\ngroup_key = "g"\nchanged = "c"\n{text}\n')

    with pytest.raises(ConfigurationError) as caught:
        Settings.load(path, environ)

    assert expected in str(caught.value)


def test_name_may_not_end_with_a_newline() -> None:
    with pytest.raises(ValueError, match="the name"):
        Fold(name="f\n", **FOLD)


def test_dead_letter_topic_of_one_fold_may_not_be_the_output_of_another() -> None:
    one = Fold(name="one", **FOLD)
    two = Fold(name="two", **{**FOLD, "dead_letters": one.output})

    with pytest.raises(ValueError, match="dead-letter topic and a source or an output"):
        Settings(app_id="a", folds=(one, two))


def test_value_of_the_wrong_kind_is_one_fault_that_names_the_expected_kind(tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    path.write_text('app_id = "a"\n[folds.f]\nsource = "s"\ngroup_key = 5\nchanged = ["x"]\nquiet_period = "1s"\ndecode = "x"\n')

    with pytest.raises(ConfigurationError) as caught:
        Settings.load(path, {})

    assert [
        'folds.f.group_key: must be a field, a dotted path, a list of them, or "@key"',
        "folds.f.changed: must be the name of a field",
        "folds.f.decode: a function, only in Python",
    ] == caught.value.faults
