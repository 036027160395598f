"""The names of the code in docs/explained/internals.md exist; those of its walks in the files that the walks give for them."""

from __future__ import annotations

import ast
import re

import pytest

from tests.test_house import PACKAGE

PAGE = PACKAGE.parent / "docs" / "explained" / "internals.md"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
STEP = re.compile(r"`(?P<name>[A-Z]\w+\.\w+|[a-z_]+)`(?:,? (?:\(|in )`(?P<file>[\w/]+\.py)`)?")
"""A method or function, with its file where one is given: in parentheses or after "in"."""
NOT_FUNCTIONS = {"yes", "no"}
WALKS = PAGE.read_text("utf-8").partition("\n## Three walks\n")[2].partition("\n## ")[0].split("\n**From ")[1:]


def definitions(path: str) -> set[str]:
    """Return the functions, and classes with their methods, of a file of the package."""
    found: set[str] = set()
    for node in ast.parse((PACKAGE / path).read_text("utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name):
                found |= {f"{name}.{inner.name}" for inner in node.body if isinstance(inner, FUNCTIONS)}
    return found


def steps(walks: str) -> dict[str, str | None]:
    """Return the steps of walks: method or function → the file that is given for it, or for its class before; None if none is."""
    found: dict[str, str | None] = {}
    files: dict[str, str] = {}
    for step in STEP.finditer(re.sub(r"\s+", " ", walks)):
        name, owner = step["name"], step["name"].partition(".")[0]
        if step["file"]:
            files[owner] = step["file"]
        if name not in NOT_FUNCTIONS:
            found.setdefault(name, files.get(owner))
    return found


ALL = steps(" ".join(WALKS))


@pytest.mark.parametrize("name", ALL)
def test_step_of_a_walk_is_defined_in_the_file_that_the_walk_gives(name: str) -> None:
    file = ALL[name]

    assert file is not None, "the walk gives no file"
    assert name in definitions(file)


def test_step_without_a_file_or_in_a_wrong_one_is_seen() -> None:
    found = steps("`Ranges.deliver` (`delivery/commits.py`), then `commit_as`, and `Ranges.keep`.")

    assert {"Ranges.deliver": "delivery/commits.py", "commit_as": None, "Ranges.keep": "delivery/commits.py"} == found
    assert "Ranges.deliver" not in definitions("delivery/commits.py")


def test_three_walks_begin_and_end_where_they_say() -> None:
    ends = [list(steps(walk)) for walk in WALKS]

    assert [("FoldingThread._fetch_records", "commit_as"), ("GroupAgent.run", "Commits.send")] == [
        (names[0], names[-1]) for names in ends[:2]
    ]
    assert "PostgresStore.apply" in ends[2]
    assert {"TopicProducer.send"} < set(ends[0])


def test_methods_named_in_internals_exist() -> None:
    named = set(re.findall(r"`([A-Z]\w+\.[a-z_]\w+)`", PAGE.read_text("utf-8")))
    files = [str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")]

    assert set() == named - set().union(*map(definitions, files))
