"""``make coverage``: runs tests, and prints the branch coverage of each package by all of their processes.

Processes that are killed, as some tests do, report nothing. Tests of broken variants are left out: they run other code.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final

from tests.checkout.imports import ROOT

DEFAULT: Final = ("tests/unit", "tests/simulation", "-k", "not caught")
FOLDER: Final = ROOT / ".cache" / "coverage"
PYTEST: Final = ("-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider", "-m", "not long")


def table(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each package, the least covered one first, and one for all (pure).

    Args:
        files: Path of a module → its numbers, as ``coverage json`` reports them in ``summary``.
    """
    packages: dict[str, Counter[str]] = {}
    for path, numbers in files.items():
        package = PurePath(path).parts[1].removesuffix(".py")
        packages.setdefault(package, Counter()).update({name: numbers[name] for name in NUMBERS})
    yield f"{'package':<16}{'statements':>12}{'missed':>8}{'branches':>10}{'missed':>8}{'covered':>9}"
    for package in sorted(packages, key=lambda name: (_percent(packages[name]), name)):
        yield _line(package, packages[package])
    yield _line("all", sum(packages.values(), Counter()))


NUMBERS: Final = ("num_statements", "missing_lines", "num_branches", "missing_branches")


def _percent(found: Counter[str]) -> float:
    """Return how much of statements and branches together is covered."""
    everything = found["num_statements"] + found["num_branches"]
    return 100.0 * (1 - (found["missing_lines"] + found["missing_branches"]) / everything) if everything else 100.0


def _line(name: str, found: Counter[str]) -> str:
    widths = zip(NUMBERS, (12, 8, 10, 8), strict=True)
    return f"{name:<16}{''.join(f'{found[number]:>{width},}' for number, width in widths)}{_percent(found):>8.1f}%"


def main(arguments: Iterable[str]) -> int:
    """Run the tests that the arguments of pytest name, and print the table; return the exit code of pytest."""
    chosen = tuple(arguments) or DEFAULT
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    environment = os.environ | {"COVERAGE_FILE": str(FOLDER / "data")}

    def coverage(*words: str) -> int:
        return subprocess.run([sys.executable, "-m", "coverage", *words], check=False, cwd=ROOT, env=environment).returncode

    code = coverage("run", "-m", "pytest", *PYTEST, *chosen)
    coverage("combine", "--quiet")
    report = FOLDER / "report.json"
    if coverage("json", "--quiet", "-o", str(report)):
        return code or 1
    found = json.loads(report.read_text("utf-8"))["files"]
    print("\n".join(table({path: of_file["summary"] for path, of_file in found.items()})))
    print(f"by module: COVERAGE_FILE={(FOLDER / 'data').relative_to(ROOT)} .venv/bin/coverage html, or report")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
