"""The last released state of this repository, as a program that an upgrade test runs beside the present one.

It is the newest tag ``v*`` before the present commit. As long as there is none, it is the commit in ``released.txt``.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.helpers.worker.fork_server import run as run_program
from tests.servers.cache import CACHE, ROOT, ServerUnavailableError, filling, run

COMMIT_FILE: Final = Path(__file__).with_name("released.txt")
GIT_SECONDS: Final = 60.0
INSTALL_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Program:
    """A version of the package that a process runs.

    Attributes:
        name: Tag or commit, for messages.
        python: Interpreter that has its dependencies.
        environment: Variables with which the interpreter imports this version.
    """

    name: str
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


PRESENT: Final = Program("present")


def released() -> Program:
    """Return the last released state. Its files, and an environment if its dependencies differ, are stored in ``.cache``.

    Raises:
        ServerUnavailableError: The history of the repository is not available, as in a shallow clone or in an archive.
    """
    name = _name()
    commit = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()
    base = CACHE / f"released-{commit[:12]}"
    if not (tree := base / "tree").is_dir():
        with filling(tree) as part:
            archive = part / "archive.tar"
            _git("archive", f"--output={archive}", commit, "streams_app", "pyproject.toml", "constraints.txt", "README.md")
            run(["tar", "-xf", str(archive), "-C", str(part)], GIT_SECONDS)
            archive.unlink()
    same = _dependencies(tree) == _dependencies(ROOT)
    # The catalogue of the subscribers is that of the present tests.
    python = sys.executable if same else str(_installed(base / "venv", tree))
    environment = {"PYTHONPATH": os.pathsep.join([str(tree), str(ROOT)])}
    command = [python, "-c", "import streams_app; print(streams_app.__file__)"]
    imported = run_program(command, base, environment, GIT_SECONDS).stdout.strip()
    assert Path(imported).is_relative_to(tree), f"{imported} is not the released version in {tree}"
    return Program(name, python, environment)


def _name() -> str:
    """Return the newest tag ``v*`` before the present commit; without one, the commit that is written down."""
    try:
        return _git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^").strip()
    except ServerUnavailableError:
        return COMMIT_FILE.read_text("utf-8").split()[0]


def _git(*words: str) -> str:
    try:
        return run(["git", "-C", str(ROOT), *words], GIT_SECONDS)
    except ServerUnavailableError as error:
        raise ServerUnavailableError(f"the released version needs the history of the repository: {error}") from error


def _dependencies(tree: Path) -> tuple[list[str], str]:
    declared = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    return declared, (tree / "constraints.txt").read_text("utf-8")


def _installed(venv: Path, tree: Path) -> Path:
    if not venv.is_dir():
        with filling(venv) as part:
            run([sys.executable, "-m", "venv", str(part)], INSTALL_SECONDS)
            pip = [str(part / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            run([*pip, "--constraint", str(tree / "constraints.txt"), str(tree)], INSTALL_SECONDS)
    return venv / "bin" / "python"
