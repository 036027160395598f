"""Declarations are typed for who writes them: the examples of tests/typed pass in strict mode, without a plugin.

The marks of ``wrong.py`` are half of each test: a mark on a line that nobody refuses is an error itself.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "tests" / "typed"

MYPY = """
[mypy]
strict = true
warn_unreachable = true
[mypy-streams_app.*]
follow_imports = silent
"""
"""As for users, to whom this project is an installed package: its own files are not checked."""


def told(*command: str) -> str:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.mark.long
def test_mypy_accepts_what_is_right_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(MYPY, "utf-8")

    assert "" == told("mypy", "--config-file", str(config), "--cache-dir", str(tmp_path), "--no-error-summary", str(EXAMPLES))


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("basedpyright") is None and "CI" not in os.environ,
    reason="pip install basedpyright, which brings what it needs",
)
def test_pyright_accepts_what_is_right_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    config = tmp_path / "pyrightconfig.json"
    options = {
        "include": [str(EXAMPLES)],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    config.write_text(json.dumps(options), "utf-8")
    command = ("basedpyright", "--project", str(config), "--pythonpath", sys.executable, "--outputjson")

    assert [] == json.loads(told(*command))["generalDiagnostics"]
