"""Classes that the package uses as keys can be hashed, whatever their members are."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final, TypeGuard

import pytest

import streams_app
from streams_app import Fold
from streams_app.operations.groups import StoredShard
from tests.checkout.imports import tree_of

UNHASHABLE: Final = ("dict", "list", "set", "Mapping", "Sequence", "Collection", "MutableMapping", "deque", "bytearray")
KEYED: Final = ("dict", "set", "frozenset", "Mapping", "MutableMapping", "defaultdict", "Counter", "OrderedDict")
WORD: Final = re.compile(r"\w+")


def _classes() -> tuple[dict[str, list[str]], set[str]]:
    """Return the annotations of the members of each class whose hash is made of them, and the names of all keys in annotations."""
    members: dict[str, list[str]] = {}
    keys: set[str] = set()
    for path in Path(streams_app.__file__).parent.rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in KEYED:
                first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
                keys.update(WORD.findall(ast.unparse(first)))
            if isinstance(node, ast.ClassDef):
                own_hash = any(isinstance(each, ast.FunctionDef) and each.name == "__hash__" for each in node.body)
                kind = " ".join(map(ast.unparse, [*node.decorator_list, *node.bases]))
                is_compared = "BaseModel" in kind or ("frozen=True" in kind and "eq=False" not in kind)
                if is_compared and not own_hash:
                    members[node.name] = [ast.unparse(each.annotation) for each in node.body if _is_hashed(each)]
    return members, keys


def _is_hashed(node: ast.stmt) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign) and not (node.value and "hash=False" in ast.unparse(node.value))


def test_key_has_only_members_with_a_hash() -> None:
    members, keys = _classes()
    without = set(UNHASHABLE)
    while more := {
        name for name, kinds in members.items() if name not in without and any(without & set(WORD.findall(kind)) for kind in kinds)
    }:
        without |= more

    assert "Cell" in keys
    assert [] == sorted(keys & members.keys() & without)


@pytest.mark.parametrize(
    "options", [{"keep": {"likes": "sum"}}, {"close_when": {"status": ["done"]}}], ids=lambda given: next(iter(given))
)
def test_shard_of_a_fold_with_tables_is_a_key(options: dict[str, object]) -> None:
    def shard() -> StoredShard:
        fold = Fold.model_validate(
            {"name": "posts", "source": "a", "group_key": "id", "changed": "likes", "quiet_period": "1s"} | options
        )
        return StoredShard("app", fold, 0, 1, 1)

    assert {shard(): 1} == {shard(): 1}
