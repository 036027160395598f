"""The unit of deploy/systemd passes systemd's own check, and fits the exit codes and the shutdown time of a worker."""

from __future__ import annotations

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from streams_app.settings.sections import WorkerSettings

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "streams-app@.service"


def service() -> dict[str, str]:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment] # names of systemd are case-sensitive; configparser documents this assignment
    parser.read(UNIT, "utf-8")
    return dict(parser["Service"])


def verified(text: str, folder: Path) -> str:
    """Return what systemd reports about a unit, with a command that exists on every machine."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    path = folder / UNIT.name
    path.write_text(text.replace("/opt/streams_app/bin/streams-app", "/bin/true"), "utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], check=False, capture_output=True, text=True, timeout=60)
    return "".join(line for line in done.stderr.splitlines(keepends=True) if UNIT.stem in line)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    assert verified(UNIT.read_text("utf-8"), tmp_path) == ""


def test_systemd_reports_a_misspelt_setting(tmp_path: Path) -> None:
    assert "RestartSecs" in verified(UNIT.read_text("utf-8").replace("RestartSec=", "RestartSecs="), tmp_path)


def test_worker_is_restarted_after_70_and_75_and_not_after_0_and_1() -> None:
    found = service()

    assert found["Restart"] == "on-failure"
    assert found["RestartPreventExitStatus"] == "1"
    assert "\nStartLimitIntervalSec=0\n" in UNIT.read_text("utf-8").partition("[Service]")[0]


def test_unit_waits_for_the_grace_of_functions() -> None:
    assert float(service()["TimeoutStopSec"]) >= max(30, WorkerSettings().grace_seconds + 10)


def test_command_is_that_of_the_package() -> None:
    assert service()["ExecStart"].endswith("/streams-app worker")
