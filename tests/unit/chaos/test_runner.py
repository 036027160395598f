"""The runner of chaos: which series a call has, what it rejects, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.chaos import __main__ as runner
from tests.chaos.run import Duration, Options, Run
from tests.chaos.series import KINDS, SUBJECTS, split
from tests.chaos.stage_run import possible_faults


class Tried(Run):
    """A run without servers, that finds a violation in every run with an even seed and fails in the third."""

    full = Duration(1, 5.0)
    share = Duration(2, 1.0, ("pulled",))

    @classmethod
    def possible(cls, options: Options) -> list[str]:
        return ["pulled", "pushed"]

    async def perform(self) -> None:
        self.faults += self.duration.faults
        if self.seed == 3:
            raise OSError("no server")
        if self.seed % 2 == 0:
            self.wrong.append("an event is lost")

    def line(self) -> str:
        return f"seed {self.seed} for {self.duration.seconds:g} s: {self.wrong}"


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(KINDS, "stores", Tried)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def call(*words: str) -> Result:
    return CliRunner().invoke(runner.main, list(words))


def test_subjects_that_share_a_stage_are_one_series() -> None:
    assert [("folds", "live"), ("stores",), ("upgrade",)] == split(["upgrade", "live", "stores", "folds"])


@pytest.mark.parametrize(("seed", "code"), [("1", 0), ("2", 1), ("3", 1)])
def test_exit_code_is_1_after_a_violation_or_an_error(seed: str, code: int) -> None:
    assert code == call("stores", "--seed", seed).exit_code


def test_run_after_a_failed_one_takes_place_and_is_in_the_table(tmp_path: Path) -> None:
    ran = call("stores", "--seed", "3", "--runs", "3", "--json", str(tmp_path / "runs.json"))
    rows = json.loads((tmp_path / "runs.json").read_text("utf-8"))

    assert [(3, True), (4, True), (5, False)] == [(row["seed"], bool(row["wrong"])) for row in rows]
    assert "3 runs, 2 of them failed" in ran.output


def test_logs_are_kept_of_a_series_that_has_failed_only(tmp_path: Path) -> None:
    call("stores")
    kept_before = list(tmp_path.glob("chaos-*"))
    call("stores", "--seed", "2")

    assert ([], 1) == (kept_before, len(list(tmp_path.glob("chaos-*"))))


def test_share_has_its_own_duration_and_faults_unless_they_are_given() -> None:
    assert "seed 1 for 1 s" in call("stores", "--share").output
    assert "pulled" in call("stores", "--share").output
    assert "pushed" in call("stores", "--share", "--faults", "pushed").output
    assert "seed 1 for 7 s" in call("stores", "--share", "--seconds", "7").output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stores", "--faults", "dropped"], "there is no fault 'dropped' of stores; there are: pulled, pushed"),
        (["folds", "--faults", "hub-sigkill"], "there is no fault 'hub-sigkill' of folds"),
        (["folds", "live", "--faults", "killed-staged"], "there is no fault 'killed-staged' of folds+live"),
        (["journal", "--topology", "cluster"], "journal has no judge for --topology cluster"),
        (["folds", "--kafka", "embedded", "--faults", "leaderless"], "there is no fault 'leaderless' of folds"),
    ],
)
def test_call_is_rejected_with_what_there_is(words: list[str], message: str) -> None:
    ran = call(*words)

    assert 2 == ran.exit_code
    assert message in ran.output


def test_every_subject_adds_its_own_faults_to_those_of_the_stage() -> None:
    of_stage = possible_faults([SUBJECTS["folds"]], Options())
    own = [name for kind in SUBJECTS.values() for name in kind.own_faults]

    assert [*of_stage, *own] == possible_faults(list(SUBJECTS.values()), Options())
    assert len(own) == len(set(own))


@pytest.mark.parametrize(("words", "series"), [([], runner.ALL), (["--share"], runner.SHARE)])
def test_call_without_subjects_runs_every_series_with_the_given_options(
    monkeypatch: pytest.MonkeyPatch, words: list[str], series: tuple[tuple[str, ...], ...]
) -> None:
    found: list[Any] = []

    def performed_apart(*given: Any) -> tuple[list[Any], bool]:
        found.append(given)
        return [], True

    monkeypatch.setattr(runner, "performed_apart", performed_apart)
    ran = call(*words, "--seconds", "3", "--jobs", "4")

    assert 0 == ran.exit_code
    assert [([(*one, "--seconds", "3.0", *words) for one in series], 4)] == found


def test_complete_call_and_the_share_of_ci_have_every_subject() -> None:
    everything = {*SUBJECTS, *KINDS}
    of_all, of_share = ({name for words in series for name in words} & everything for series in (runner.ALL, runner.SHARE))

    assert {"opensearch-groups"} == everything - of_all
    assert {"mariadb", "opensearch-groups", "bad-input"} == everything - of_share


def test_series_in_processes_of_their_own_fail_together(capfd: pytest.CaptureFixture[str]) -> None:
    rows, is_right = runner.performed_apart([("bad-input", "--runs", "0"), ("stores", "--faults", "none")], jobs=2)

    assert ([], False) == (rows, is_right)
    assert "there is no fault 'none' of stores" in capfd.readouterr().out
