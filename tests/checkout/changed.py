"""Prints the unit tests that a change reaches, for `make check`: ``python -m tests.checkout.changed [REVISION]``.

A change is what differs from the revision (HEAD without one), with files that git does not track yet. A Python file reaches the
tests that import it, directly or through other modules; a Lua script reaches those of the module that calls it; a page reaches
the tests of the docs. Any other file reaches all unit tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.checkout.imports import ROOT, importing

UNIT = ROOT / "tests" / "unit"
DOCS = UNIT / "docs"
LUA_READERS = {
    "delivery": ["streams_app/delivery/scripts.py"],
    "folding": ["streams_app/folding/store/scripts.py"],
    "subscribers": ["streams_app/subscribers/state/store.py"],
    "live": ["streams_app/live/store/view_store.py"],
    "journal": ["streams_app/journal/store/journal_store.py"],
}
"""Room of the package → files that read its Lua scripts."""
WITHOUT_UNIT_TESTS = (".ci", ".github", "deploy", "Dockerfile", "docker-compose.yml", ".gitignore", ".dockerignore")


def changed_files(revision: str) -> list[Path]:
    """Return the files that differ from a revision; removed ones are omitted."""
    lists = [["git", "diff", "--name-only", "-z", revision, "--"], ["git", "ls-files", "--others", "--exclude-standard", "-z"]]
    names = [name for command in lists for name in _output(command).split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).exists()]


def reached_tests(changed: Iterable[Path]) -> set[Path]:
    """Return the files and folders of unit tests that a change reaches; an empty set if there are none."""
    python: set[Path] = set()
    found: set[Path] = set()
    for path in changed:
        room = path.relative_to(ROOT).parts
        if path.suffix == ".py":
            python.add(path)
            if path.name == "conftest.py" and path.parent in (UNIT.parent, UNIT, *UNIT.rglob("*")):
                found.add(UNIT if path.parent == UNIT.parent else path.parent)
        elif path.suffix == ".lua" and room[1] in LUA_READERS:
            python |= {ROOT / reader for reader in LUA_READERS[room[1]]}
        elif path.suffix == ".md" or room[0] in WITHOUT_UNIT_TESTS:
            found.add(DOCS)
        else:
            return {UNIT}
    if not python:
        return found
    return found | {path for path in importing(python) if path.name.startswith("test_") and UNIT in path.parents}


def _output(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    revision = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    print(*sorted(str(path.relative_to(ROOT)) for path in reached_tests(changed_files(revision))))
