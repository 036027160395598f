"""``streams-app tune`` on files: its output, and the message and exit code for bad input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streams_app.cli import run

BEGIN_MS = 1_700_000_000_000
SETTINGS = """\
app_id = "social"

[folds.account-metrics]
source = "post-metric-updated"
group_key = "account_id"
changed = "metrics"
quiet_period = "15m"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "streams.toml").write_text(SETTINGS, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def line(at_ms: Any, account: str = "a") -> str:
    return json.dumps({"ts": at_ms, "account_id": account, "metrics": {"likes": 1}})


def tuned(lines: Sequence[str], *arguments: str) -> int:
    Path("events.jsonl").write_text("".join(f"{each}\n" for each in lines), "utf-8")
    return run(["tune", "--file", "events.jsonl", "--time", "ts", *arguments])


BURSTS = [line(BEGIN_MS + burst * 60_000 + at, account) for burst in range(5) for at in range(0, 8_000, 1_000) for account in "ab"]


def curve_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_output_has_the_curve_and_the_recommendation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = tuned(BURSTS, "--windows", "500ms,1s,52s,53s", "--json")
    found = curve_of(capsys)

    assert 0 == code
    assert [
        "fold",
        "events",
        "groups",
        "from_ms",
        "to_ms",
        "curve",
        "sample",
        "own_periods",
        "auto",
        "recommended",
        "doubt",
    ] == list(found)
    assert ("account-metrics", 80, 2, BEGIN_MS, BEGIN_MS + 247_000) == tuple(found.values())[:5]
    assert [500, 1_000, 52_000, 53_000] == [point["quiet_ms"] for point in found["curve"]]
    assert [80, 10, 10, 2] == [point["records"] for point in found["curve"]]
    assert [
        "quiet_ms", "records", "ratio", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_mean_ms", "latency_max_ms",
        "peak_open_groups", "redis_bytes",
    ] == list(found["curve"][0])  # fmt: skip
    assert ["quiet_ms", "why"] == list(found["recommended"])


@pytest.mark.parametrize(
    ("arguments", "quiet_ms"),
    [(["--target-ratio", "0.8"], 1_000), (["--target-ratio", "0.95"], 53_000), (["--max-latency", "9s"], 1_000)],
)
def test_recommendation_follows_target_and_limit(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], quiet_ms: int
) -> None:
    tuned(BURSTS, "--windows", "500ms,1s,53s", "--json", *arguments)

    assert quiet_ms == curve_of(capsys)["recommended"]["quiet_ms"]


def test_default_candidates_include_the_configured_one_and_none_beyond_the_hold(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned([line(BEGIN_MS), line(BEGIN_MS + 40 * 3_600_000), line(BEGIN_MS + 40 * 3_600_000 + 5_000)], "--json")
    windows = [point["quiet_ms"] for point in curve_of(capsys)["curve"]]

    assert 900_000 in windows
    assert 6 * 3_600_000 == max(windows)


def test_human_output_has_a_table_a_plot_and_a_settings_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = tuned(BURSTS)
    out, err = capsys.readouterr()

    assert (0, "") == (code, err)
    assert out.startswith("account-metrics: 80 events of 2 groups\n2023-11-14 22:13:20Z to 2023-11-14 22:17:27Z (4 min 7 s)\n")
    assert "folding ratio" in out
    assert 'recommended: quiet_period = "' in out
    assert "\x1b" not in out


# Bad input


@pytest.mark.parametrize(
    ("lines", "records"),
    [
        pytest.param([line(BEGIN_MS)], 1, id="one event"),
        pytest.param([line(BEGIN_MS, str(n % 3)) for n in range(9)], 3, id="all at one time"),
        pytest.param([line(BEGIN_MS + ms) for ms in (0, 900, 100, *range(900, 920))], 1, id="times that go back"),
        pytest.param([*[line(BEGIN_MS)] * 40, "{broken", line("soon"), "[]", "{}", line(BEGIN_MS)], 1, id="broken lines"),
    ],
)
def test_odd_input_yields_a_curve(folder: Path, capsys: pytest.CaptureFixture[str], lines: list[str], records: int) -> None:
    code = tuned(lines, "--windows", "1s,10s", "--json")

    assert 0 == code
    assert [records, records] == [point["records"] for point in curve_of(capsys)["curve"]]
    assert 0 == tuned(lines)


SPREAD_MS = [burst * 60_000 + at for burst in range(20) for at in range(0, 8_000, 1_000)]


def shuffled(times: Sequence[int]) -> list[int]:
    return sorted(times, key=lambda at: at * 7919 % 100_003)


@pytest.mark.parametrize(
    ("lines", "doubt"),
    [
        pytest.param([line(BEGIN_MS + at) for at in reversed(SPREAD_MS)], "older than a line before them", id="newest first"),
        pytest.param([line(BEGIN_MS + at) for at in shuffled(SPREAD_MS)], "older than a line before them", id="shuffled"),
        pytest.param([line(BEGIN_MS + at // 100) for at in shuffled(SPREAD_MS)], "older than a line", id="shuffled within 13 s"),
        pytest.param([line(at + 5_000_000_000_000) for at in SPREAD_MS], "have a time in the future", id="in the future"),
        pytest.param(
            [line(BEGIN_MS + 3_600_000), *(line(BEGIN_MS + at) for at in SPREAD_MS)], "160 of 161 lines (99.4%) are older",
            id="one ahead",
        ),
        pytest.param(
            [line(BEGIN_MS + at) for at in SPREAD_MS[:135]] + ["[", *[f"{line(BEGIN_MS)}," for _ in range(14)]],
            "15 of 150 lines (10.0%) were rejected", id="a tenth rejected",
        ),
        pytest.param([*["[1],"] * 477, line(BEGIN_MS)], "477 of 478 lines (99.8%) were rejected", id="all but one rejected"),
        pytest.param(
            [line(f"2026-11-{1 + number // 8:02}") for number in range(160)], "they look like dates without a time", id="dates"
        ),
        pytest.param([line(46_000 + at / 86_400_000) for at in SPREAD_MS], "day numbers of a spreadsheet", id="day numbers"),
    ],
)  # fmt: skip
def test_events_with_implausible_times_yield_a_curve_without_a_recommendation(
    folder: Path, capsys: pytest.CaptureFixture[str], lines: list[str], doubt: str
) -> None:
    code = tuned(lines, "--json")
    found = curve_of(capsys)

    assert (1, None) == (code, found["recommended"])
    assert doubt in found["doubt"]
    assert found["curve"]
    assert 1 == tuned(lines)
    out = capsys.readouterr().out
    assert "no recommendation" in out
    assert "recommended:" not in out
    assert doubt in " ".join(out.split())


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([line(BEGIN_MS + at - (number % 2) * 900) for number, at in enumerate(SPREAD_MS)], id="below a second"),
        pytest.param(
            [line(BEGIN_MS + at - (number % 11 == 5) * 30_000) for number, at in enumerate(SPREAD_MS)], id="one in eleven late"
        ),
        pytest.param([*(line(BEGIN_MS + at) for at in SPREAD_MS), *["[1],"] * 17], id="less than a tenth rejected"),
    ],
)
def test_usual_disorder_of_a_log_does_not_prevent_a_recommendation(
    folder: Path, capsys: pytest.CaptureFixture[str], lines: list[str]
) -> None:
    code = tuned(lines, "--windows", "1s,10s,2m", "--json")
    found = curve_of(capsys)

    assert (0, None) == (code, found["doubt"])
    assert found["recommended"]["quiet_ms"] > 0


@pytest.mark.parametrize(("events", "is_few"), [(1, True), (17, True), (99, True), (100, False)])
def test_recommendation_from_few_events_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str], events: int, is_few: bool
) -> None:
    tuned([line(BEGIN_MS + number * 1_000) for number in range(events)], "--json")

    assert is_few == ("too few to rely on" in curve_of(capsys)["recommended"]["why"])


@pytest.mark.parametrize(
    ("at", "like"),
    [
        (1_763_888_400_000_000, "microseconds since 1970"),
        ("1763888400000000", "microseconds since 1970"),
        (1_763_888_400_000_000_000, "nanoseconds since 1970"),
        ("23.11.2026", "a date without a time"),
        ("11/23/2026", "a date without a time"),
        ("46000.5", "the day number of a spreadsheet"),
    ],
)
def test_invalid_time_is_reported_with_the_unit_it_resembles(
    folder: Path, capsys: pytest.CaptureFixture[str], at: Any, like: str
) -> None:
    tuned([line(BEGIN_MS), line(at)])

    assert f"{str(at)!r} in 'ts' is not a time since 1970, but looks like {like}" in capsys.readouterr().err


def test_rejected_lines_are_reported_on_stderr(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned([line(BEGIN_MS), "{broken", line("so\x1bon"), line("soon")], "--json")

    assert capsys.readouterr().err.splitlines() == [
        "3 of 4 lines were rejected and are not in the curve:",
        "  2 bad-time, the first at line 3: 'so\\x1bon' in 'ts' is not a time since 1970",
        "  1 not-json, the first at line 2: unexpected character, expected a string key: line 1 column 2 (char 1)",
    ]


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([], "there is nothing in it"),
        ([line(BEGIN_MS).replace('"ts"', '"created\\u202e"')] * 2, "no line has a time in 'ts'; the fields are created\\u202e"),
        (["{broken"], "none of its 1 lines is a JSON object"),
    ],
)
def test_error_suggests_a_fix_if_no_line_is_usable(
    folder: Path, capsys: pytest.CaptureFixture[str], lines: list[str], fault: str
) -> None:
    code = tuned(lines)

    assert 1 == code
    assert f"error: --file events.jsonl: {fault}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--file", "events.jsonl"], "--file needs --time FIELD"),
        (["--time", "ts"], "--time requires --file"),
        (["--key", "ts"], "--key requires --file"),
        (["--from", "soon"], "'soon' is not a time"),
        (["--windows", "1s,soon"], "'soon' is not a duration"),
        (["--windows", "0s"], "'0s' is shorter than 1ms"),
        *(
            (
                ["--target-ratio", share],
                f"{share!r} is not a share that can be folded: write a number from 0 to below 1, as in 0.95",
            )
            for share in ("1", "95", "-0.1", "nan", "inf", "-inf", "most")
        ),
        (["--from", "1969-07-20"], "is not a time, or is before 1970"),
        (["--fold", "account-metric"], "did you mean 'account-metrics'"),
        (["--file", "none.jsonl", "--time", "ts"], "cannot read none.jsonl"),
    ],
)
def test_contradictory_arguments_are_rejected(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], fault: str
) -> None:
    code = run(["tune", *arguments])

    assert 1 == code
    assert fault in capsys.readouterr().err


def test_fold_by_the_record_key_needs_a_field_for_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "streams.toml").write_text(SETTINGS.replace('"account_id"', '"@key"'), "utf-8")

    assert 1 == tuned(BURSTS)
    assert "--file needs --key FIELD: fold account-metrics is by the record key" in capsys.readouterr().err
    assert 0 == tuned(BURSTS, "--key", "account_id")


def test_range_is_selected_by_the_times_in_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = tuned(BURSTS, "--json", "--from", str(BEGIN_MS + 60_000), "--to", str(BEGIN_MS + 120_000))
    found = curve_of(capsys)

    assert (0, 16, BEGIN_MS + 60_000, BEGIN_MS + 67_000) == (code, found["events"], found["from_ms"], found["to_ms"])
    assert 1 == tuned(BURSTS, "--from", "-1h")
    assert "no line that can be folded lies in the range of --from and --to" in capsys.readouterr().err


def test_candidate_that_settings_would_reject_is_not_recommended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned([line(BEGIN_MS + ms) for ms in (0, 500, 3_600_000)], "--windows", "1s,8h", "--target-ratio", "0.6", "--json")

    assert 1_000 == curve_of(capsys)["recommended"]["quiet_ms"]


BY_EVENT = """\
quiet_period = {field = "wait", default = "2s", at_most = "10m"}
leading = true
"""


def waiting(at_ms: int, wait: Any = None) -> str:
    return json.dumps({"ts": BEGIN_MS + at_ms, "account_id": "a", "metrics": {"likes": 1}, "wait": wait})


def test_candidate_replaces_the_quiet_period_only_of_events_without_their_own(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "streams.toml").write_text(SETTINGS.replace('quiet_period = "15m"\n', BY_EVENT), "utf-8")
    lines = [waiting(0, "2s"), waiting(5_000), waiting(9_000, 60), waiting(60_000), waiting(61_000)]
    code = tuned(lines, "--windows", "500ms,1s,4s,11m", "--json")
    found = curve_of(capsys)

    # Sessions of 1, 1, 2 and 1 events; with 1s of 1, 1 and 3; with 4s of 1 and 4. Sessions of several events make two records.
    assert (0, 5, 2) == (code, found["events"], found["own_periods"])
    assert [5, 4, 3, 3] == [point["records"] for point in found["curve"]]
    assert "Candidates longer than quiet_period.at_most, 10m, are not considered." in found["recommended"]["why"]


def test_default_quiet_period_is_recommended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "streams.toml").write_text(SETTINGS.replace('quiet_period = "15m"\n', BY_EVENT), "utf-8")
    times = [burst * 60_000 + number * 1_000 for burst in range(20) for number in range(8)]
    lines = [waiting(ms, "3s" if ms % 60_000 in (0, 4_000) else None) for ms in times]
    code = tuned(lines)
    out, err = capsys.readouterr()

    assert (0, "") == (code, err)
    assert "160 events of 1 group; 40 events decide the quiet period" in out
    assert "X: the default of quiet_period, after events that do not decide it" in out
    assert 'recommended: quiet_period.default = "1s"' in out
    assert "160 events into 40 records" in out


AUTO = 'quiet_period = {auto = "knee", at_least = "2s", default = "10m", at_most = "1h"}\n'
SHORT_BURSTS = [
    line(BEGIN_MS + minute * 60_000 + second * 1_000, f"{minute} {second % 10}") for minute in range(60) for second in range(20)
]


def test_quiet_period_that_sets_itself_is_shown_beside_the_candidates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "streams.toml").write_text(SETTINGS.replace('quiet_period = "15m"\n', AUTO), "utf-8")
    assert 0 == tuned(SHORT_BURSTS, "--windows", "15s,10m")
    lines = [one.split() for one in capsys.readouterr().out.splitlines()]
    assert 0 == tuned(SHORT_BURSTS, "--windows", "15s,10m", "--json")
    auto = curve_of(capsys)["auto"]

    (row,) = (one for one in lines if one[1:2] == ["auto"])
    assert ["○", "auto", "600", "50.00%"] == row[:4]
    assert any(one[:1] == ["auto:"] and {"10m,", "changes"} <= set(one) for one in lines)
    assert any(one[:5] == ["recommended", "if", "it", "were", "fixed:"] for one in lines)
    assert (600_000, 600) == (auto["default_ms"], auto["records"])
    assert auto["changes"] > 1
    assert 9_000 < auto["last_quiet_ms"]["0"] < 600_000


def test_target_of_a_quiet_period_that_sets_itself_is_the_default_target(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = AUTO.replace('"knee"', "{target_ratio = 0.4}")
    (folder / "streams.toml").write_text(SETTINGS.replace('quiet_period = "15m"\n', target), "utf-8")
    assert 0 == tuned(SHORT_BURSTS, "--windows", "15s,10m", "--json")

    assert "15s is the shortest candidate that folds at least 40" in curve_of(capsys)["recommended"]["why"]
