"""Python environments of programs that the project does not depend on, below ``.cache``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def install(folder: Path, constraints: Path, packages: Sequence[str]) -> Path:
    """Create an environment, once for each state of its constraints; return the folder of its programs.

    Args:
        folder: Where it is created.
        constraints: File with the exact versions.
        packages: What is installed, with its dependencies.
    """
    programs, installed, wanted = folder / "bin", folder / "installed", constraints.read_text("utf-8")
    if not installed.exists() or installed.read_text("utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(programs / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(constraints)]
        subprocess.run([*pip, *packages], check=True)
        installed.write_text(wanted, "utf-8")
    return programs
