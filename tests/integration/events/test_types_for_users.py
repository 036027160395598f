"""Declarations are typed for users: tests/typed and the programs of the docs pass in strict mode, without a plugin.

The comments of ``wrong.py`` that expect an error are half of each test: one on a correct line is an error itself.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout.pages import PAGES, ROOT, fenced, name_of

EXAMPLES = ROOT / "tests" / "typed"

MYPY = """
[mypy]
strict = true
warn_unreachable = true
[mypy-streams_app.*]
follow_imports = silent
[mypy-django.*]
ignore_missing_imports = true
"""
"""As for users of the installed package: its own files are not checked. Django ships no types."""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder with every program of README and docs/; ``untyped`` contains those that import untyped packages."""
    folder = tmp_path / "programs"
    (folder / "untyped").mkdir(parents=True)
    for page in PAGES:
        for number, program in enumerate(fenced(page, "python")):
            file = f"{name_of(page).replace('.', '_').replace('/', '_').replace('-', '_')}_{number}.py"
            (folder / ("untyped" if "from django" in program else "") / file).write_text(program, "utf-8")
    return folder


def output_of(*command: str) -> str:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.mark.long
def test_mypy_accepts_correct_programs_and_rejects_incorrect_ones(tmp_path: Path, programs: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(MYPY, "utf-8")

    assert "" == output_of(
        "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path), "--no-error-summary", str(EXAMPLES), str(programs)
    )


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("basedpyright") is None and "CI" not in os.environ,
    reason="pip install basedpyright, which brings what it needs",
)
def test_pyright_accepts_correct_programs_and_rejects_incorrect_ones(tmp_path: Path, programs: Path) -> None:
    config = tmp_path / "pyrightconfig.json"
    options = {
        "include": [str(EXAMPLES), str(ROOT / "examples"), str(programs)],
        "exclude": [str(programs / "untyped")],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    config.write_text(json.dumps(options), "utf-8")
    command = ("basedpyright", "--project", str(config), "--pythonpath", sys.executable, "--outputjson")

    assert [] == json.loads(output_of(*command))["generalDiagnostics"]
