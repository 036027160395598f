"""The regression guard of the benchmarks: it takes the ratios promised in the README and reports any that is lower."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.contest import Contest, Run
from benchmarks.loads import LOADS, Expected
from benchmarks.report import best_ratio, broken_promises, promised_ratios, ratio

TABLE = """\
Some text.

<!-- benchmark -->
| load | ratio to bare | events/s |
|---|---:|---:|
| **hot** | 0.60 | 400 000 |
| `wide`, until the last record | 0.07 (0.06 to 0.08) | 50 000 |
| stock | - | 4 000 |
<!-- /benchmark -->

| load | ratio |
|---|---|
| hot | 99 |
"""


def readme(folder: Path, text: str) -> Path:
    path = folder / "README.md"
    path.write_text(text, "utf-8")
    return path


def raced(load: str, bare: list[float], ours: list[float], to_the_last_record: list[float] | None = None) -> Contest:
    ends = to_the_last_record or ours
    runs = [Run("bare", rate) for rate in bare]
    runs += [Run("sessions", rate, end_to_end=end) for rate, end in zip(ours, ends, strict=True)]
    return Contest(LOADS[load], Expected(), runs)


def test_promised_ratios_are_read_from_the_marked_table(tmp_path: Path) -> None:
    assert {"hot": 0.6, "wide": 0.07} == promised_ratios(readme(tmp_path, TABLE))


@pytest.mark.parametrize(
    "text",
    [
        "| load | ratio |\n|---|---|\n| hot | 0.6 |\n",
        "<!-- benchmark -->\n| load | ratio |\n|---|---|\n| hot | 0.6 |\n",
        "<!-- benchmark -->\nto come\n<!-- /benchmark -->\n",
        "<!-- benchmark -->\n| load | events/s |\n|---|---|\n| hot | 0.6 |\n<!-- /benchmark -->\n",
        "<!-- benchmark -->\n| name | ratio |\n|---|---|\n| hot | 0.6 |\n<!-- /benchmark -->\n",
        "<!-- benchmark -->\n| load | ratio |\n|---|---|\n| hot | - |\n| wide |\n<!-- /benchmark -->\n",
    ],
    ids=["no markers", "no end", "no table", "no ratio column", "no load column", "no number"],
)
def test_readme_without_ratios_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"README\.md"):
        promised_ratios(readme(tmp_path, text))


def test_missing_readme_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="benchmark"):
        promised_ratios(tmp_path / "README.md")


@pytest.mark.parametrize(("ours", "is_broken"), [(361.0, False), (360.0, False), (359.0, True), (1.0, True)])
def test_ratio_below_the_tolerance_is_a_broken_promise(ours: float, is_broken: bool) -> None:
    found = broken_promises([raced("hot", [1_000.0], [ours])], {"hot": 0.6}, 0.6)

    assert is_broken == bool(found)
    assert all("hot" in line and "0.6" in line for line in found)


def test_load_measured_in_records_is_judged_up_to_its_last_record() -> None:
    fast_folding_slow_records = raced("wide", [1_000.0], [900.0], [10.0])

    assert broken_promises([fast_folding_slow_records], {"wide": 0.07}, 0.6)


def test_best_run_of_each_load_counts() -> None:
    """A slow run of plain reading must not raise the ratio, and a slow run of the application must not lower it."""
    contest = raced("hot", [1_000.0, 200.0], [100.0, 500.0])

    assert best_ratio(contest) == pytest.approx(0.5)
    assert ratio(contest) == pytest.approx(0.5)
    assert [] == broken_promises([contest], {"hot": 0.6}, 0.6)
    assert broken_promises([raced("hot", [1_000.0, 200.0], [100.0, 300.0])], {"hot": 0.6}, 0.6)


def test_load_missing_from_the_readme_cannot_pass() -> None:
    assert ["big: the README promises no ratio"] == broken_promises([raced("big", [1.0], [1.0])], {"hot": 0.6}, 0.6)


def test_cpu_time_is_reported_per_measured_event() -> None:
    assert {"worker": 2.5} == Run("sessions", 1.0, cpu={"worker": 5.0}, events=2_000_000).micros()
    assert {} == Run("sessions", 1.0, cpu={"worker": 5.0}).micros()
