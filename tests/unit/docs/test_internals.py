"""The lists and file names of docs/explained/internals.md, CONTRIBUTING.md and the glossary agree with the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from streams_app.folding.core.closing import CONTENT_BOUNDS
from tests.checkout.pages import ROOT, name_of
from tests.unit.docs.test_reference import columns

PAGE = ROOT / "docs/explained/internals.md"
PACKAGE = ROOT / "streams_app"
SCRIPTS = PACKAGE / "folding/store/lua"
FOR_DEVELOPERS = [PAGE, ROOT / "CONTRIBUTING.md", ROOT / "docs/reference/glossary.md", PACKAGE / "kafka/patches/README.md"]

# Names of files

FILE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|lua|rs|md|toml|yml|js|html|txt))(?::[\w.]+)?`")
NOT_OF_THIS_REPOSITORY = {"streams.toml"}


def files() -> set[str]:
    """Return the files of the repository, each also without its first folders."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    else:
        listed = [name_of(path) for path in ROOT.rglob("*.*")]
    return {"/".join(parts[at:]) for path in listed for parts in [path.split("/")] for at in range(len(parts))}


def missing_files(text: str) -> set[str]:
    """Return the names of files in backquotes that are the end of no path in the repository."""
    return set(FILE.findall(text)) - files() - NOT_OF_THIS_REPOSITORY


@pytest.mark.parametrize("page", FOR_DEVELOPERS, ids=name_of)
def test_every_file_that_is_named_in_backquotes_exists(page: Path) -> None:
    assert set() == missing_files(page.read_text("utf-8"))


def test_name_of_a_removed_file_is_detected() -> None:
    text = "`console_reader.py`, `reading/console_reader.py` and `shared_answers.py`, in `console/console_reader.py`"

    assert {"shared_answers.py", "console/console_reader.py"} == missing_files(text)


# Adding a bound

NEEDS_NO_RULE = {
    ("max_bytes", "native/src/pack.rs"): "a fold that keeps events is read by Python",
    ("max_changed", "tuning/replay.py"): "the sets of names say whether the bound may close a group: sets.may_close",
}
"""Bound and place → why the place does not name the bound."""


def files_of_a_bound() -> dict[str, str]:
    """Return the steps of the list "Add a bound": the first file that an item names → its text."""
    steps = PAGE.read_text("utf-8").partition("* **Add a bound**")[2].partition("\n\n")[0]
    named = [FILE.findall(step)[0] for step in re.split(r"\n    \d\. ", steps)[1:]]
    return {name: (ROOT if name.startswith("native") else PACKAGE).joinpath(name).read_text("utf-8") for name in named}


@pytest.mark.parametrize("bound", CONTENT_BOUNDS)
def test_each_place_of_the_list_for_a_new_bound_has_the_rule_of_every_bound(bound: str) -> None:
    without = {name for name, text in files_of_a_bound().items() if not re.search(rf"\b{bound}\b", text)}

    assert without == {name for needless, name in NEEDS_NO_RULE if needless == bound}


def test_list_for_a_new_bound_has_as_many_places_as_both_pages_say() -> None:
    number = {5: "five", 6: "six", 7: "seven"}[len(files_of_a_bound())]

    assert f"is a change of these {number} places:" in PAGE.read_text("utf-8")
    assert f"| a bound that closes groups | {number} places," in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


# Scripts


def test_table_of_scripts_lists_every_script_of_a_shard() -> None:
    documented = {cell.strip().strip("*") for cell in columns(PAGE, "except *watermark*, which only reads:")}

    assert {path.stem for path in SCRIPTS.glob("*.lua")} == documented
