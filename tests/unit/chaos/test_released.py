"""Which state of the repository an upgrade test takes for the last released one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.chaos.__main__ import main
from tests.chaos.upgrade import released, run
from tests.servers.cache import ServerUnavailableError


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with three commits in place of that of the tests; the first one is written down."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    for number in range(3):
        git(root, "commit", "--quiet", "--allow-empty", f"--message={number}")
    written = tmp_path / "released.txt"
    written.write_text(git(root, "rev-parse", "HEAD~2"), "utf-8")
    monkeypatch.setattr(released, "ROOT", root)
    monkeypatch.setattr(released, "COMMIT_FILE", written)
    return root


def git(root: Path, *words: str) -> str:
    author = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    return subprocess.run(["git", "-C", str(root), *author, *words], check=True, capture_output=True, text=True).stdout.strip()


def test_released_state_without_a_tag_is_the_commit_that_is_written_down(repository: Path) -> None:
    assert git(repository, "rev-parse", "HEAD~2") == released._name()


def test_released_state_is_the_newest_tag_of_a_version_before_the_present_commit(repository: Path) -> None:
    for tag, commit in (("v1", "HEAD~2"), ("v2", "HEAD~1"), ("other", "HEAD~1"), ("v3", "HEAD")):
        git(repository, "tag", tag, commit)

    assert "v2" == released._name()


def test_released_state_is_unavailable_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    with pytest.raises(ServerUnavailableError, match="the released version needs the history of the repository"):
        released.released()


def test_released_state_is_unavailable_in_a_shallow_clone(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", "shallow")
    monkeypatch.setattr(released, "ROOT", tmp_path / "shallow")

    with pytest.raises(ServerUnavailableError, match="the released version needs the history of the repository"):
        released.released()


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_upgrade_test_without_history_fails_in_ci_only(monkeypatch: pytest.MonkeyPatch, ci: str, code: int) -> None:
    def unavailable() -> released.Program:
        raise ServerUnavailableError("no history")

    monkeypatch.setattr(run, "released", unavailable)
    monkeypatch.setenv("CI", ci)
    ran = CliRunner().invoke(main, ["upgrade", "--share"])

    assert (code, "no upgrade test: no history") == (ran.exit_code, ran.stderr.strip())
