"""The units of deploy/systemd pass systemd's own check, and fit the exit codes and the shutdown time of a worker."""

from __future__ import annotations

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from streams_app.settings.sections import WorkerSettings

FOLDER = Path(__file__).parents[3] / "deploy" / "systemd"
UNIT = FOLDER / "streams-app@.service"
CONSOLE = FOLDER / "streams-app-console.service"


def service(unit: Path = UNIT) -> dict[str, str]:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment] # names of systemd are case-sensitive; configparser documents this assignment
    parser.read(unit, "utf-8")
    return dict(parser["Service"])


def verified(text: str, folder: Path, name: str = UNIT.name) -> str:
    """Return what systemd reports about a unit, with a command that exists on every machine."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    path = folder / name
    path.write_text(text.replace("/opt/streams_app/bin/streams-app", "/bin/true"), "utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], check=False, capture_output=True, text=True, timeout=60)
    return "".join(line for line in done.stderr.splitlines(keepends=True) if path.stem in line)


@pytest.mark.parametrize("unit", [UNIT, CONSOLE], ids=["worker", "console"])
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    assert verified(unit.read_text("utf-8"), tmp_path, unit.name) == ""


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
    assert service(CONSOLE)["ExecStart"].endswith("/streams-app console")


def test_console_is_confined_as_a_worker_is() -> None:
    names = {
        name for name in service() if name.startswith(("Protect", "Private", "Restrict", "NoNew", "Capability", "User", "Group"))
    }

    assert {name: service()[name] for name in names} == {name: service(CONSOLE).get(name) for name in names}
