"""Every private name of aiokafka and Faust that the package uses is declared."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import streams_app
from streams_app.kafka.patches.private_names import TOUCHED, has
from tests.checkout.imports import tree_of

PACKAGE = Path(streams_app.__file__).parent
PATCHES = PACKAGE / "kafka" / "patches"
LIBRARIES = ("aiokafka", "faust", "mode", "asyncio")
OF_OTHERS = {
    "_asdict",
    "_replace",
    "_fields",
    "_make",
    "_exit",
    "_current_frames",
    "_buckets",
    "_sum",
    "_upper_bounds",
    "_set_running_loop",
}
"""Private names of other libraries: of named tuples, os, sys, prometheus_client, and of asyncio for implementers of loops."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


class Classes(ast.NodeVisitor):
    """Every class of the package: its bases as written, and the private names that it defines."""

    def __init__(self) -> None:
        self.bases: dict[str, list[str]] = {}
        self.own: dict[str, set[str]] = {}

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bases[node.name] = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
        own = self.own.setdefault(node.name, set())
        for inner in ast.walk(node):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                own.add(inner.name)
            elif (
                isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and isinstance(inner.value, ast.Name)
                and inner.value.id in ("self", "cls")
            ):
                own.add(inner.attr)
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                own.add(inner.id)
            elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                own.add(inner.value)  # in __slots__
        self.generic_visit(node)

    def owns(self, class_name: str, name: str) -> bool:
        return name in self.own.get(class_name, ()) or any(self.owns(base, name) for base in self.bases.get(class_name, ()))


def classes_of_the_package() -> Classes:
    found = Classes()
    for path in PACKAGE.rglob("*.py"):
        found.visit(tree_of(path))
    return found


def touched(tree: ast.Module, classes: Classes) -> set[str]:
    """Return private names of foreign objects that one source reads, sets, calls or imports."""
    found: set[str] = set()

    def walk(node: ast.AST, class_name: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, ast.ClassDef) else class_name
            if isinstance(child, ast.Attribute) and is_private(child.attr):
                is_self = ast.unparse(child.value) in ("self", "cls", "super()") and class_name is not None
                is_own = is_self and class_name is not None and classes.owns(class_name, child.attr)
                is_named = isinstance(child.value, ast.Name) and classes.owns(child.value.id, child.attr)
                if not (is_own or is_named):
                    found.add(child.attr)
            elif isinstance(child, ast.ImportFrom) and (child.module or "").partition(".")[0] in LIBRARIES:
                found.update(alias.name for alias in child.names if is_private(alias.name))
            walk(child, inside)

    walk(tree, None)
    return found


def words_of_patches() -> Iterator[str]:
    """Return private names in strings, as in ``getattr(connection, "_send")``."""
    for path in PATCHES.glob("*.py"):
        if path.name != "private_names.py":
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"_[a-z]\w*", node.value):
                    yield node.value


def overridden() -> Iterator[str]:
    """Return private names of the libraries' classes that subclasses override."""
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text("utf-8")
        imports, subclasses = rf"^(from|import) ({'|'.join(LIBRARIES)})\b", r"^class .*\("
        if not all(re.search(pattern, source, re.MULTILINE) for pattern in (imports, subclasses)):
            continue
        mine = Classes()
        mine.visit(tree_of(path))
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for found in vars(importlib.import_module(name)).values():
            if not isinstance(found, type) or found.__module__ != name:
                continue
            theirs = [base for base in found.__mro__ if base.__module__.partition(".")[0] in LIBRARIES]
            for word in filter(is_private, mine.own[found.__name__]):
                if any(has(base, word) for base in theirs):
                    yield word


def declared() -> set[str]:
    return {
        word
        for owner, names in TOUCHED.items()
        for word in (owner.partition(":")[2], *(name.partition("(")[0] for name in names))
        if is_private(word)
    }


def test_every_private_name_in_use_is_declared_and_no_other() -> None:
    classes = classes_of_the_package()
    found = {name for path in PACKAGE.rglob("*.py") for name in touched(tree_of(path), classes)}
    found |= {*words_of_patches(), *overridden()}

    assert declared() == found - OF_OTHERS, "declare it in streams_app/kafka/patches/private_names.py, or no longer"


@pytest.mark.parametrize(
    "source",
    [
        "def f(fetcher):\n    return fetcher._inner.tell()",
        "def f(fetcher):\n    fetcher._inner = None",
        "class A:\n    _inner = 1\n    def f(self, b):\n        return b._inner",
        "class A(Consumer):\n    def f(self):\n        return self._inner()",
        "class A(Consumer):\n    def f(self):\n        return super()._inner()",
        "def f():\n    def send(self):\n        self._inner = 1",
        "from aiokafka.client import _inner",
    ],
)
def test_foreign_private_name_is_detected_in_any_kind_of_access(source: str) -> None:
    classes = Classes()
    classes.visit(ast.parse(source))

    assert {"_inner"} == touched(ast.parse(source), classes)


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __init__(self):\n        self._inner = 1\n    def f(self):\n        return self._inner",
        "class A:\n    def _inner(self): ...\nclass B(A):\n    def f(self):\n        return self._inner() or super()._inner()",
        "class A:\n    __slots__ = ('_inner',)\n    def f(self):\n        return self._inner",
        "def _inner(): ...\n_inner()",
    ],
)
def test_own_private_name_is_not_a_foreign_one(source: str) -> None:
    classes = Classes()
    classes.visit(ast.parse(source))

    assert set() == touched(ast.parse(source), classes)
