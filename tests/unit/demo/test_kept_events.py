"""The events that a demo leaves for the command that draws their curve."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from streams_app.cli import run
from streams_app.demo import kept
from streams_app.demo.kept import FOLDER, FirstEvents, SavedEvents, tune_arguments, with_time
from streams_app.demo.load import Load, Update

BEGAN_MS = 1_700_000_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    return tmp_path


def saved(folder: Path, updates: list[Update], **fields: str) -> SavedEvents:
    one = FirstEvents(folder, **({"group_key": "account_id", "changed": "metrics"} | fields))
    for update in updates:
        one.add([update], BEGAN_MS)
    return one.save()


def test_displayed_command_reproduces_the_displayed_figures(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["streams-app"])
    (first, second), words = saved(folder, Load(groups=50, rate=300).until(20_000))
    code = run([*words[words.index("tune") :], "--windows", "2s,10s,60s", "--json"])
    found = json.loads(capsys.readouterr().out)

    shown = [float(share) for share in re.findall(r"([\d.]+)%", first)]
    assert 0 == code
    assert [pytest.approx(100 * point["ratio"], abs=0.06) for point in found["curve"]] == shown
    assert first.startswith("quiet period?      2 s would have folded ")
    assert "in this demo it was 3s, and max_hold 10s" in second


def test_demo_curve_reads_the_saved_events(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without, advice = run(["demo", "--curve"]), capsys.readouterr().err
    saved(folder, Load(groups=50, rate=300).until(20_000))
    code, (drawn, command) = run(["demo", "--curve"]), capsys.readouterr()

    assert (1, 0) == (without, code)
    assert shlex.split(command.replace("\\\n", ""))[-len(tune_arguments()) :] == tune_arguments()
    assert max(map(len, command.splitlines())) <= 80
    assert "run streams-app demo here first" in advice
    assert drawn.startswith("account-metrics: ")


def test_folder_keeps_only_the_two_files_of_the_command(folder: Path) -> None:
    saved(folder, Load(groups=50, rate=300).until(1_000))

    assert {FOLDER / "events.jsonl", FOLDER / "streams.toml"} == {path for path in Path().rglob("*") if path.is_file()}


def test_command_is_not_shown_if_nothing_can_be_written(folder: Path) -> None:
    Path(".cache").write_text("in the way")
    found = saved(folder, Load(groups=50, rate=300).until(1_000))

    assert not found.command
    assert found.lines[-1].strip().startswith("the events could not be kept in .cache/streams-app-demo: ")


def test_sample_size_is_bounded_by_what_can_be_read_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_EVENTS", 10)
    found = saved(folder, Load(groups=50, rate=300).until(1_000))

    assert found.lines[0].endswith(" of the first 10 events")
    assert 10 == len((FOLDER / "events.jsonl").read_bytes().splitlines())


def test_custom_fields_appear_in_the_stored_settings(folder: Path) -> None:
    found = saved(folder, [Update(5, b"a", b'{"user": "a", "seen": {"x": 1}}')] * 2, group_key="user", changed="seen")

    assert "folded 50.0%, 10 s 50.0%" in found.lines[0]


def test_unfoldable_events_have_no_curve(folder: Path) -> None:
    assert SavedEvents([], []) == saved(folder, [Update(0, b"a", b"not json")])


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (b'{"a":1}', b'{"happened_ms":5,"a":1}\n'),
        (b' {"a":1} ', b'{"happened_ms":5,"a":1}\n'),
        (b"{}", b"{}\n"),
        (b"{ }", b"{ }\n"),
        (b"[1]", b"[1]\n"),
        (b"{broken", b'{"happened_ms":5,broken\n'),
    ],
)
def test_event_gets_its_time_and_other_lines_stay_unchanged(value: bytes, line: bytes) -> None:
    assert line == with_time(value, 5)
