"""Names in the package: a public class name has one meaning, and words that the glossary has replaced do not come back."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import streams_app

PACKAGE = Path(streams_app.__file__).parent

BANNED = {
    "again": 2, "carrier": 0, "culprit": 0, "culprits": 0, "drained": 0, "edges": 0, "elsewhere": 0, "held": 0, "hurry": 0,
    "insist": 0, "insisted": 0, "insisting": 0, "known": 16, "leave": 4, "leaving": 0, "letter": 0, "letters": 0, "look": 1,
    "looked": 0, "looks": 0, "lost": 11, "mark": 0, "marks": 0, "note": 1, "noted": 0, "notes": 0, "noting": 0, "pace": 0,
    "patience": 3, "placed": 0, "placing": 0, "posts": 0, "refusal": 0, "refusals": 0, "refuse": 0, "refused": 2, "refuser": 0,
    "refuses": 2, "riddle": 0, "starved": 0, "stumbling": 0, "surroundings": 0, "tell": 0, "tells": 0, "told": 0, "trouble": 6,
    "unplaced": 0, "vanished": 0,
}  # fmt: skip
"""Replaced word → how many identifiers of the package may still contain it. A number may only shrink, to zero."""


def modules() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text("utf-8"))) for path in sorted(PACKAGE.rglob("*.py"))]


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield each name that a module defines: classes, functions, parameters, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def words_of(identifier: str) -> list[str]:
    """Split an identifier into lower-case words, with `dead_letters` as one."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)
    joined = "_".join(word.lower() for word in words)
    return [word for word in re.sub(r"dead_letters?", "", joined).split("_") if word]


def test_public_class_names_are_unique() -> None:
    found = Counter(
        node.name
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert [] == [name for name, times in found.items() if times > 1]


def test_replaced_words_do_not_come_back() -> None:
    identifiers = {name for _, tree in modules() for name in defined(tree)}
    found = Counter(word for name in identifiers for word in set(words_of(name)) if word in BANNED)

    assert {} == {word: number for word, number in found.items() if number > BANNED[word]}
