"""Wheel and source distribution, as released: complete, accepted by twine, and able to run the demo from anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.cache import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(470)]

LIMIT_SECONDS = 400


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command in a folder, with nothing of the checkout in its environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "STREAMS_APP_"))}
    done = subprocess.run(
        command, cwd=cwd, env=clean, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def tracked() -> set[str]:
    """Return the files tracked by git, as paths from the top."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    return set(
        subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    ) - {""}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with both, built from the tracked files: the source distribution first, and the wheel from it."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    tracked()
    subprocess.run(["git", "checkout-index", "--all", f"--prefix={source}{os.sep}"], cwd=ROOT, check=True)
    run(sys.executable, "-m", "build", "--outdir", dist, source, cwd=source)
    yield dist


def only(dist: Path, pattern: str) -> Path:
    [found] = dist.glob(pattern)
    return found


def test_twine_accepts_both_distributions(dist: Path) -> None:
    output = run(
        sys.executable, "-m", "twine", "--no-color", "check", "--strict", only(dist, "*.whl"), only(dist, "*.tar.gz"), cwd=dist
    )

    assert output.count("PASSED") == 2


def test_wheel_contains_the_whole_package_and_the_deployment_files(dist: Path) -> None:
    with zipfile.ZipFile(only(dist, "*.whl")) as archive:
        names = set(archive.namelist())
    package = {name for name in tracked() if name.startswith("streams_app/")}
    deploy = {name.removeprefix("deploy/") for name in tracked() if name.startswith("deploy/")}
    shared = {name.partition(".data/data/share/streams_app/")[2] for name in names if ".data/data/share/streams_app/" in name}

    assert package == {name for name in names if name.startswith("streams_app/")}
    assert deploy == shared


def test_source_distribution_contains_every_file_that_its_tests_need(dist: Path) -> None:
    with tarfile.open(only(dist, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {name for name in tracked() if name.startswith(("streams_app/", "tests/", "deploy/", "docs/", "examples/"))}

    assert set() == needed - names


def test_installed_wheel_runs_the_demo_from_an_empty_folder(dist: Path, tmp_path: Path) -> None:
    venv, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    wheel = f"{only(dist, '*.whl')}[embedded]"
    run(venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)

    output = run(venv / "bin" / "streams-app", "demo", "--seconds", "10", cwd=empty)

    assert "check passed" in output
    assert {".cache"} == {path.name for path in empty.iterdir()}
    assert (venv / "share" / "streams_app" / "alerts.yml").read_text("utf-8") == (ROOT / "deploy" / "alerts.yml").read_text("utf-8")
