"""The names of the code in docs/internals.md exist; those of its walks in the files that they name."""

from __future__ import annotations

import ast
import re

import pytest

from tests.test_house import PACKAGE

PAGE = PACKAGE.parent / "docs" / "internals.md"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FILE = re.compile(r"`([\w/]+\.py)`")


def walks() -> str:
    """Return the section with the walks."""
    return PAGE.read_text("utf-8").partition("\n## Three walks\n")[2].partition("\n## ")[0]


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


def steps() -> list[str]:
    """Return the names that the walks pass."""
    named = re.findall(r"`(\w+\.\w+|commit_as|after_failure|fitted|apply_statement)`", walks())
    return sorted({name for name in named if not name.endswith((".py", ".lua"))})


@pytest.mark.parametrize("name", steps())
def test_step_of_a_walk_is_defined_in_a_file_of_its_walks(name: str) -> None:
    files = set(FILE.findall(walks()))

    assert any(name in definitions(file) for file in files)


def test_three_walks_name_at_least_twenty_steps() -> None:
    assert 3 == walks().count("\n**From ")
    assert 20 <= len(steps())


def test_methods_named_in_internals_exist() -> None:
    named = set(re.findall(r"`([A-Z]\w+\.[a-z_]\w+)`", PAGE.read_text("utf-8")))
    files = [str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")]

    assert set() == named - set().union(*map(definitions, files))
