"""Names in package, tests and benchmarks: a class name has one meaning, and replaced words do not come back."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

import streams_app
from tests.checkout.imports import tree_of

PACKAGE = Path(streams_app.__file__).parent
TESTS = Path(__file__).parent
BENCHMARKS = TESTS.parent / "benchmarks"

BANNED = {
    "again": 2, "carrier": 0, "culprit": 0, "culprits": 0, "deaths": 0, "drained": 0, "edges": 0, "elsewhere": 0, "endings": 0,
    "figures": 0, "held": 0, "host": 3, "hurry": 0, "insist": 0, "insisted": 0, "insisting": 0, "known": 16, "leave": 4,
    "leaving": 0, "letter": 0, "letters": 0, "look": 1, "looked": 0, "looking": 0, "looks": 0, "lost": 10, "mark": 0, "marks": 0,
    "note": 1, "noted": 0, "notes": 0, "noting": 0, "pace": 0, "patience": 3, "place": 2, "placed": 0, "places": 0, "placing": 0,
    "posts": 0, "refusal": 0, "refusals": 0, "refuse": 0, "refused": 2, "refuser": 0, "refuses": 2, "riddle": 0, "said": 0,
    "saying": 0, "serving": 0, "spelling": 0, "starved": 0, "stumbling": 0, "surroundings": 0, "tell": 0, "tells": 0, "told": 0,
    "trials": 0, "tries": 0, "trouble": 0, "troubled": 0, "troubles": 0, "unplaced": 0, "vanished": 0,
}  # fmt: skip
"""Replaced word → how many identifiers of the package may still contain it. A number may only shrink, to zero."""

BANNED_IN_TESTS = dict.fromkeys([*BANNED, "guarded", "joining", "marking", "say"], 0) | {
    "again": 2, "carrier": 3, "deaths": 4, "drained": 1, "figures": 10, "host": 5, "known": 12, "leave": 4, "letter": 3, "lost": 24,
    "note": 3, "patience": 2, "place": 42, "placed": 1, "places": 7, "posts": 1, "serving": 1, "tell": 1, "tries": 1,
}  # fmt: skip
"""Replaced word → how many identifiers of tests and benchmarks may still contain it, counted once a file. It may only shrink.

What remains is plain English in its place (`lost` for events that are counted as lost), a name of the package, of a library or of
a setting (`patience`), or a field of a payload.
"""


def modules(*folders: Path) -> list[tuple[Path, ast.Module]]:
    return [(path, tree_of(path)) for folder in folders for path in sorted(folder.rglob("*.py"))]


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield each name that a module defines: classes, functions, parameters, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.alias(asname=str(name)):
                yield name


def words_of(identifier: str) -> list[str]:
    """Split an identifier into lower-case words, with `dead_letters` as one."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)
    joined = "_".join(word.lower() for word in words)
    return [word for word in re.sub(r"dead_letters?", "", joined).split("_") if word]


def counted(identifiers: Iterable[str], words: Container[str]) -> Counter[str]:
    """Return word → number of identifiers that contain it."""
    return Counter(word for name in identifiers for word in set(words_of(name)) if word in words)


SHARED_NAMES = {
    "Action", "Asked", "Change", "Columns", "Conditions", "Connection", "Handler", "Headers", "Page", "Progress", "Ranges", "Run",
    "Scalar", "Schema", "ShardKey", "Stage", "Start", "State",
}  # fmt: skip
"""Names of types that a module gives to another type as an alias. The set may only shrink."""


def aliases(tree: ast.Module) -> Iterator[str]:
    """Yield the public names that a module gives to types: in camel case, and not the result of a call."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value):
                if re.match(r"[A-Z]+[a-z]", name) and not isinstance(value, ast.Call):
                    yield name


def test_names_of_classes_and_aliases_are_unique() -> None:
    classes = Counter(node.name for _, tree in modules(PACKAGE) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    named = Counter(name for _, tree in modules(PACKAGE) for name in aliases(tree))

    assert [] == [name for name, times in classes.items() if times > 1]
    assert SHARED_NAMES == {name for name in named if classes[name] + named[name] > 1}


def test_alias_is_seen_and_a_constant_is_not() -> None:
    assert ["Event", "Page"] == list(
        aliases(ast.parse("Event = A | B\nPage: TypeAlias = Callable\nMAX = 1\nT = TypeVar('T')\nOf = f()"))
    )


def test_replaced_words_do_not_come_back() -> None:
    identifiers = {name for _, tree in modules(PACKAGE) for name in defined(tree)}
    found = counted(identifiers, BANNED)

    assert {} == {word: number for word, number in found.items() if number > BANNED[word]}


def test_replaced_words_do_not_come_back_in_tests_and_benchmarks() -> None:
    found: Counter[str] = Counter()
    for _, tree in modules(TESTS, BENCHMARKS):
        # The name of a test is a sentence.
        found += counted({name for name in defined(tree) if not name.startswith("test_")}, BANNED_IN_TESTS)

    assert {} == {word: number for word, number in found.items() if number > BANNED_IN_TESTS[word]}
