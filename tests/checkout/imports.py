"""The imports among the Python files of the checkout: each file is parsed once a process, or once for :func:`importers`."""

from __future__ import annotations

import ast
import json
import os
import re
from collections import deque
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".cache" / "imports.json"
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


class FileNames(NamedTuple):
    """What determines the modules that a file needs.

    Attributes:
        stamp: Changes whenever the file is written.
        imports: Names that it imports.
        texts: Modules whose names it contains as text: commands, databases and formats are imported when they are needed.
        folders: Folders of such modules.
    """

    stamp: str
    imports: list[str]
    texts: list[str]
    folders: list[str]


def names_in(path: Path, stored: FileNames | None = None) -> FileNames:
    """Return the names in a file, without parsing it if ``stored`` was read from the file as it is."""
    written = path.stat()
    stamp = f"{written.st_mtime_ns} {written.st_size}"
    if stored is not None and stored.stamp == stamp:
        return stored
    text = path.read_text("utf-8")
    imports = imported(path, in_functions=True, for_types=False)
    return FileNames(stamp, sorted(imports), _BY_NAME.findall(text), [f"{folder}." for folder in _BY_FOLDER.findall(text)])


def _names() -> dict[str, FileNames]:
    """Return module → names in its file, and store them for the next process, because parsing all files takes seconds."""
    rules = names_in(Path(__file__)).stamp  # names that other rules have found are of no use
    try:
        kept_rules, kept = json.loads(KEPT.read_text("utf-8"))
        stored = {module: FileNames(*names) for module, names in kept.items()} if kept_rules == rules else {}
    except (OSError, ValueError, TypeError):
        stored = {}
    found = {module: names_in(path, stored.get(module)) for module, path in modules().items()}
    if found != stored:
        KEPT.parent.mkdir(exist_ok=True)
        part = KEPT.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps([rules, found]), "utf-8")
        part.replace(KEPT)
    return found


@cache
def importers() -> dict[str, set[str]]:
    """Return module → modules that import it."""
    found: dict[str, set[str]] = {}
    for module, names in _names().items():
        needed = {name if name in modules() else name.rpartition(".")[0] or name for name in names.imports}
        folders = tuple(names.folders)
        needed |= {other for other in modules() if other.startswith(folders)} if folders else set()
        for other in needed | (set(names.texts) & modules().keys()):
            found.setdefault(other, set()).add(module)
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
