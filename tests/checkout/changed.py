"""The tests that a change reaches, for `make check` and `.ci/run`.

``python -m tests.checkout.changed [REVISION]`` prints the unit tests that a change since a revision reaches, the nearest first.
With ``--all``, it prints all tests with their distances as JSON, for ``STREAMS_APP_TEST_REACHED``; without a revision, this is the
change since :func:`base`.

A change is what differs from the revision (HEAD without one), with files that git does not track yet. A Python file reaches the
tests that import it, directly or through other modules; a Lua script reaches those of the module that calls it; a page reaches
the tests of the docs. Any other file reaches all tests.

Integration tests run the program, which imports nearly everything. They are reached by what the package of their folder needs, and
by changes of the program outside of :data:`KINDS`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from tests.checkout.imports import ROOT, distances, importing, modules

PACKAGE = ROOT / "streams_app"
TESTS = ROOT / "tests"
UNIT = TESTS / "unit"
DOCS = UNIT / "docs"
LUA_READERS = {
    "delivery": ["streams_app/delivery/scripts.py"],
    "folding": ["streams_app/folding/store/scripts.py"],
    "subscribers": ["streams_app/subscribers/state/store.py"],
    "live": ["streams_app/live/store/view_store.py"],
    "journal": ["streams_app/journal/store/journal_store.py"],
}
"""Package → files that read its Lua scripts."""
WITHOUT_UNIT_TESTS = (".ci", ".github", "deploy", "docs", "Dockerfile", "docker-compose.yml", ".gitignore", ".dockerignore")

KINDS = frozenset(
    {"folding", "subscribers", "read_store", "live", "journal", "events", "schemas", "operations", "checking", "tuning", "local"}
    | {"testing", "demo", "requirements"}
)
"""Packages of one kind of component, or of commands: tests in the folders of others do not depend on them."""
RUNS_PROGRAM = "tests.helpers.worker.fork_server"
ASSEMBLED = frozenset({RUNS_PROGRAM, "streams_app.cli", "tests.conftest", "tests.integration.conftest"})
"""Modules that import something of each package. A test that imports one of them uses only a part of that."""
COVERED = {"tests/integration/docs/test_example_project_page.py": ("examples/", "streams_app/live/")}
"""Test → beginnings of the paths of what it covers, which neither its imports nor its folder say."""
OF_COVERED, OF_PROGRAM, FARTHEST = 2, 3, 9
"""Distance of a test from what it covers, of one that runs the program from that, and of all from a file that is no source."""
PASSED = "refs/streams-app/passed"
"""The last commit on which `.ci/run` passed in this clone."""
RECENT = 50
"""Commits that count as the change if nothing says where it begins."""


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
        parts = path.relative_to(ROOT).parts
        if path.suffix == ".py":
            python.add(path)
            if path.name == "conftest.py" and path.parent in (UNIT.parent, UNIT, *UNIT.rglob("*")):
                found.add(UNIT if path.parent == UNIT.parent else path.parent)
        elif path.suffix == ".lua" and parts[1] in LUA_READERS:
            python |= {ROOT / reader for reader in LUA_READERS[parts[1]]}
        elif path.suffix == ".md" or parts[0] in WITHOUT_UNIT_TESTS:
            found.add(DOCS)
        else:
            return {UNIT}
    if not python:
        return found
    return found | {path for path in importing(python) if path.name.startswith("test_") and UNIT in path.parents}


def nearest_first(changed: Collection[Path]) -> list[Path]:
    """Return :func:`reached_tests`: those of the packages that changed, then the others by the number of imports to the change."""
    near = distances(path for path in changed if path.suffix == ".py")
    packages = {UNIT / path.relative_to(PACKAGE).parts[0] for path in changed if PACKAGE in path.parents}

    def distance(path: Path) -> int:
        return 0 if packages & set(path.parents) else near.get(path, 0)

    return sorted(reached_tests(changed), key=lambda path: (distance(path), path))


# All tests, with their distances


def base() -> str | None:
    """Return the commit where the change of this checkout begins; None if there is no history.

    That is the last commit on which CI passed here, or the branch that the change was taken from, or the newest release, whichever
    is nearest; otherwise an earlier commit, because a clone of a landed change does not say where it begins.
    """
    tags = _output(["git", "tag", "--list", "v*", "--merged", "HEAD", "--sort=-creatordate"]).split()
    names = [name for name in (PASSED, "origin/HEAD", "origin/main", *tags[:1]) if _revision(name)]
    begins = {_output(["git", "merge-base", "HEAD", name], check=False).strip() for name in names} - {_revision("HEAD"), ""}
    sizes = {commit: int(_output(["git", "rev-list", "--count", f"{commit}..HEAD"])) for commit in begins}
    return min(sizes, key=sizes.__getitem__, default=None) or _revision(f"HEAD~{RECENT}") or None


def distances_of_tests(changed: Iterable[Path]) -> dict[Path, int]:
    """Return the test files that a change reaches, with the number of imports between them and the change."""
    sources: set[Path] = set()
    found: dict[Path, int] = {}
    tests = [path for name, path in modules().items() if path.name.startswith("test_") and name.startswith("tests.")]
    for path in changed:
        parts = path.relative_to(ROOT).parts
        covering = [test for test, covered in COVERED.items() if str(path.relative_to(ROOT)).startswith(covered)]
        _nearer(found, {ROOT / test: OF_COVERED for test in covering})
        if path.suffix == ".py":
            sources.add(path)
            below = [test for test in tests if path.name == "conftest.py" and path.parent in test.parents]
            _nearer(found, dict.fromkeys(below, 1))
        elif path.suffix == ".lua" and parts[1] in LUA_READERS:
            sources |= {ROOT / reader for reader in LUA_READERS[parts[1]]}
        elif path.suffix == ".md" or parts[0] in WITHOUT_UNIT_TESTS:
            _nearer(found, dict.fromkeys([test for test in tests if test.parent.name == "docs"], 1))
        elif PACKAGE in path.parents:
            sources |= {source for source in modules().values() if (PACKAGE / parts[1]) in source.parents}
        else:
            _nearer(found, dict.fromkeys(tests, FARTHEST))
    by_import = distances(sources, assembled=ASSEMBLED)
    _nearer(found, {test: by_import[test] for test in tests if test in by_import})
    _nearer(found, {test: 1 + near for test in tests if (near := _of_room(test, by_import)) is not None})
    if any(PACKAGE in path.parents and path.relative_to(PACKAGE).parts[0] not in KINDS for path in sources):
        _nearer(found, dict.fromkeys([test for test in tests if test in _running()], OF_PROGRAM))
    return found


def _nearer(found: dict[Path, int], others: dict[Path, int]) -> None:
    for path, distance in others.items():
        found[path] = min(distance, found.get(path, FARTHEST))


@cache
def _running() -> frozenset[Path]:
    """Return the files that run the program."""
    return frozenset(distances([modules()[RUNS_PROGRAM]], assembled=ASSEMBLED))


def _of_room(test: Path, by_import: dict[Path, int]) -> int | None:
    """Return the distance between a change and the modules that an integration test covers by its folder."""
    integration = TESTS / "integration"
    if integration not in test.parents:
        return None
    package = PACKAGE / test.parent.relative_to(integration)
    below = f"{package}/"  # as text, because a thousand files are compared with each test
    return min((near for path, near in by_import.items() if str(path).startswith(below) and package != PACKAGE), default=None)


def written(revision: str | None) -> str:
    """Return the tests that a change reaches, with what determines the choice among them, as JSON.

    Without a revision, a change reaches all tests.
    """
    changed = changed_files(revision) if revision else [ROOT / "constraints.txt"]
    distance = {str(path.relative_to(ROOT)): near for path, near in sorted(distances_of_tests(changed).items())}
    seed = int(_output(["git", "rev-list", "--count", "HEAD"]))
    names = sorted(str(path.relative_to(ROOT)) for path in changed)
    return json.dumps({"since": revision, "seed": seed, "changed": names, "distance": distance}, indent=0)


def _revision(name: str) -> str:
    """Return the commit of a name, or an empty text if there is none."""
    return _output(["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"], check=False).strip()


def _output(command: list[str], *, check: bool = True) -> str:
    return subprocess.run(command, cwd=ROOT, check=check, stdout=subprocess.PIPE, text=True).stdout


def _main(arguments: list[str]) -> None:
    revisions = [argument for argument in arguments if argument != "--all"]
    if "--all" in arguments:
        print(written(revisions[0] if revisions else base()))
    else:
        print(*[path.relative_to(ROOT) for path in nearest_first(changed_files(*revisions or ["HEAD"]))])


if __name__ == "__main__":
    _main(sys.argv[1:])
