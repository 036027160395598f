"""The imports among the Python files of the checkout: each file is parsed once a process."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("streams_app", "tests", "benchmarks", "examples")

_BY_NAME = re.compile(r'"(streams_app(?:\.\w+)+)"')
_BY_FOLDER = re.compile(r'f"(streams_app(?:\.\w+)+)\.\{')


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    """Return the name and file of every module in :data:`FOLDERS`."""
    return {module_of(path): path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))}


@cache
def imported(path: Path, *, in_functions: bool = True, for_types: bool = True) -> frozenset[str]:
    """Return the names of all modules that a file imports directly, and of the imported names.

    Args:
        path: The file.
        in_functions: Whether imports within functions count.
        for_types: Whether imports under ``if TYPE_CHECKING`` count.
    """
    found: set[str] = set()
    waiting: list[ast.AST] = [tree_of(path)]
    while waiting:
        match waiting.pop():
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {f"{module}.{alias.name}" for alias in names}
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not in_functions:
                pass
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=otherwise) if not for_types:
                waiting += otherwise
            case ast.stmt() | ast.Module() | ast.ExceptHandler() | ast.match_case() as node:
                # No expression contains an import.
                waiting += (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))
    return frozenset(found)


def modules_in(path: Path, *, in_functions: bool, for_types: bool) -> set[str]:
    """Return the modules that a file imports, or from which it imports a name."""
    names = imported(path, in_functions=in_functions, for_types=for_types)
    return {name if name in modules() else name.rpartition(".")[0] or name for name in names}


def by_name(path: Path) -> set[str]:
    """Return the modules whose names a file contains as text: commands, databases and formats are imported when they are needed."""
    text = path.read_text("utf-8")
    folders = tuple(f"{folder}." for folder in _BY_FOLDER.findall(text))
    return {module for module in modules() if module.startswith(folders)} | (set(_BY_NAME.findall(text)) & modules().keys())


@cache
def importers() -> dict[str, set[str]]:
    """Return module → modules that import it."""
    found: dict[str, set[str]] = {}
    for module, path in modules().items():
        for needed in modules_in(path, in_functions=True, for_types=False) | by_name(path):
            found.setdefault(needed, set()).add(module)
    return found


def importing(changed: Iterable[Path]) -> set[Path]:
    """Return the files that import one of the given files, directly or through other files, and those files themselves."""
    return set(distances(changed))


def distances(changed: Iterable[Path], assembled: Collection[str] = ()) -> dict[Path, int]:
    """Return the files that import one of the given files, with the number of imports between them.

    Python runs the ``__init__`` of each package above an imported module. A changed ``__init__`` therefore reaches all modules
    below it; what an unchanged one imports does not count, unless a name is imported from it.

    Args:
        changed: The given files; their distance is 0.
        assembled: Modules whose own imports do not reach those that import them.
    """
    given = {module_of(path) for path in changed} & modules().keys()
    packages = tuple(f"{module}." for module in given if modules()[module].name == "__init__.py")
    given |= {module for module in modules() if module.startswith(packages)}
    found = dict.fromkeys(given, 0)
    waiting = deque(given)
    while waiting:
        module = waiting.popleft()
        if module in assembled and module not in given:
            continue
        new = importers().get(module, set()) - found.keys()
        found |= dict.fromkeys(new, found[module] + 1)
        waiting += new
    return {modules()[module]: distance for module, distance in found.items()}
