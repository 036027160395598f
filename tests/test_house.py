"""The project rules that a program can check: imports, sizes, docstrings, script headers, clocks, folders of tests."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from streams_app.folding.core.closing import Bounds
from streams_app.folding.store.scripts import FoldScripts
from streams_app.journal.store.journal_store import JournalScripts
from streams_app.live.store.view_store import LiveScripts
from streams_app.subscribers.state.store import SubscriberScripts
from tests.checkout import ratchets
from tests.checkout.imports import ROOT, imported, module_of, modules_in, tree_of
from tests.checkout.layers import LAYERS

PACKAGE = ROOT / "streams_app"
MODULES = sorted(PACKAGE.rglob("*.py"))
LUA = sorted(PACKAGE.rglob("*.lua"))
STORES = {
    "folding/store/lua": "folding/store/shard_store.py",
    "subscribers/state/lua": "subscribers/state/store.py",
    "live/store/lua": "live/store/view_store.py",
    "journal/store/lua": "journal/store/journal_store.py",
}
"""Folder of scripts → the file that calls them."""
SETS = {
    "folding/store/lua": FoldScripts,
    "subscribers/state/lua": SubscriberScripts,
    "live/store/lua": LiveScripts,
    "journal/store/lua": JournalScripts,
}
"""Folder of scripts → the set that registers them."""
SCRIPTS = [path for folder in STORES for path in sorted((PACKAGE / folder).glob("*.lua"))]

BY_REDIS_TIME = {"subscribers/state/lua/lease.lua"}
"""Scripts that use the time of Redis: a rate needs one clock for all workers, and no event or record depends on it."""

MAX_LINES = 450

TOP_LEVEL = {
    ".ci", ".dockerignore", ".github", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "LICENSE", "MANIFEST.in",
    "Makefile", "README.md", "benchmarks", "constraints.txt", "deploy", "docker-compose.yml", "docs", "examples", "native",
    "pyproject.toml", "streams_app", "tests",
}  # fmt: skip
BANNED_IN_PURE = {"redis", "faust", "aiokafka", "time", "os", "asyncio"}
PURE_FOLDERS = {"folding/core", "folding/reading", "read_store/core", "live/core", "journal/core"}
"""Folders whose files import no I/O module, directly or through other modules of this project."""


def label(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


# Imports and clocks


OURS = {module_of(path): path for path in MODULES}


@cache
def needs() -> dict[str, set[str]]:
    """Return module → modules that it imports."""
    return {module: modules_in(path, in_functions=False, for_types=False) for module, path in OURS.items()}


@cache
def named() -> dict[str, set[str]]:
    """Return the same, including imports for the type checker only."""
    return {module: modules_in(path, in_functions=False, for_types=True) for module, path in OURS.items()}


def reached(module: str) -> set[str]:
    """Return the modules that a module imports, directly or through other modules of this project."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = needs().get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def packages() -> dict[str, set[str]]:
    """Return folder → folders that its modules import."""
    found: dict[str, set[str]] = {}
    for module in OURS.keys() - {"streams_app"}:
        needed = named()[module] & (OURS.keys() - {"streams_app"})
        found.setdefault(package_of(module), set()).update({package_of(other) for other in needed} - {package_of(module)})
    return found


def package_of(module: str) -> str:
    """Return the folder of a module; a file in the package root counts as a folder."""
    folder = OURS[module].parent
    return module if folder == PACKAGE else label(folder)


def is_declared_pure(path: Path) -> bool:
    return "(pure" in (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]


def test_pure_module_reaches_no_io_module() -> None:
    pure = [path for path in MODULES if label(path.parent) in PURE_FOLDERS or is_declared_pure(path)]
    needed = {label(path): {name.partition(".")[0] for name in imported(path) | reached(module_of(path))} for path in pure}

    assert {} == {name: names & BANNED_IN_PURE for name, names in needed.items() if names & BANNED_IN_PURE}


def of_files() -> dict[str, set[str]]:
    return {module: (needed & OURS.keys()) - {module} for module, needed in named().items()}


@pytest.mark.parametrize("needed", [of_files, packages], ids=["files", "folders"])
def test_imports_have_no_cycle(needed: Callable[[], dict[str, set[str]]]) -> None:
    list(TopologicalSorter(needed()).static_order())


def test_folders_import_downward_only() -> None:
    upward = {
        f"{name} imports {other}"
        for name, needed in packages().items()
        for other in needed
        if name in LAYERS and other in LAYERS and LAYERS.index(other) > LAYERS.index(name)
    }

    assert set() == upward
    assert set() == {name for name in packages() if "/" in name or not name.startswith("streams_app.")} - set(LAYERS)


def test_delivery_imports_only_the_listed_modules() -> None:
    found = {name for module in OURS if module.startswith("streams_app.delivery") for name in named()[module] & OURS.keys()}

    assert {
        "backoff",
        "clock",
        "errors",
        "health.progress",
        "health.status",
        "reasons",
        "redis_access.client",
        "reported_backoff",
        "retries",
    } == {name.removeprefix("streams_app.") for name in found if not name.startswith("streams_app.delivery.")}


def test_numpy_is_imported_with_tuning_alone() -> None:
    found = {module for module in OURS if any(name.partition(".")[0] == "numpy" for name in reached(module))}

    assert set() == {module for module in found if not module.startswith("streams_app.tuning.")}


def test_worker_imports_large_libraries_only_for_what_needs_them() -> None:
    """They would take 3 to 10 MB each, and a part of each start."""
    found = {name.partition(".")[0] for name in reached("streams_app.worker.runtime")}

    assert set() == found & {"cryptography", "fastavro", "jinja2", "jwt", "numpy", "pymysql", "rich"}


def test_clock_is_read_in_clock_py_only() -> None:
    """Ruff rejects the names that ``pyproject.toml`` bans; the only permitted exception is the rest of a wait."""
    texts = {label(path): path.read_text("utf-8") for path in MODULES}
    of_loops = {name: re.findall(r"loop(?:\(\))?\.time\b", text) for name, text in texts.items()}

    assert [] == [name for name, text in texts.items() if "TID251" in text]
    assert {"kafka/consumer_thread.py": ["loop.time", "loop.time"]} == {name: found for name, found in of_loops.items() if found}


@pytest.mark.parametrize("path", [path for path in LUA if label(path) not in BY_REDIS_TIME], ids=label)
def test_script_does_not_read_the_clock_of_redis(path: Path) -> None:
    assert None is re.search(r"call\(\s*['\"]TIME['\"]|os\.time|os\.clock", path.read_text("utf-8"), re.IGNORECASE)


# Files


def test_top_level_has_exactly_the_listed_files() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    kept = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert {path.partition("/")[0] for path in kept.split("\0") if path} == TOP_LEVEL


def test_every_file_is_short() -> None:
    lines = {label(path): len(path.read_text("utf-8").splitlines()) for path in MODULES + LUA}

    assert {} == {name: number for name, number in lines.items() if number > MAX_LINES}


SHORT = 60
STANDS_ALONE = {
    "checking/process.py": "one subject of the command check",
    "checking/rights.py": "one subject of the command check",
    "checking/schema_registry.py": "one subject of the command check",
    "checking/transactions.py": "one subject of the command check",
    "kafka/patches/consumer_end.py": "uses private names of aiokafka, which only modules of this folder do",
}
"""Module under 60 lines with one importer → why it stands alone. Other such modules say so by one of :data:`REASONS`."""
REASONS = ('"""Patch of ', "This module stands alone")
"""Phrases of a module that says why it stands alone; a patch corrects one fault of a library, and is removed with the fault."""


def importers() -> dict[str, set[str]]:
    """Return module → modules of the package that import it, also within functions."""
    found: dict[str, set[str]] = {}
    for module, path in OURS.items():
        names = imported(path)
        for needed in {name if name in OURS else name.rpartition(".")[0] for name in names} & OURS.keys() - {module}:
            found.setdefault(needed, set()).add(module)
    return found


def test_short_module_with_one_importer_says_why_it_stands_alone() -> None:
    texts = {module: OURS[module].read_text("utf-8") for module, users in importers().items() if len(users) == 1}
    found = {
        label(OURS[module])
        for module, text in texts.items()
        if len(text.splitlines()) < SHORT and OURS[module].name != "__init__.py" and not any(reason in text for reason in REASONS)
    }

    assert STANDS_ALONE.keys() == found


@pytest.mark.parametrize("name", ratchets.LIMITS)
def test_ratchet_stands_at_its_limit(name: str) -> None:
    assert not (what_to_do := ratchets.verdict(name, ratchets.LIMITS[name], ratchets.found()[name])), what_to_do


@pytest.mark.parametrize(("limit", "words"), [(1, "at most 1 are allowed"), (3, "lower the limit"), (2, "")])
def test_ratchet_says_what_to_do_if_its_count_rises_or_falls(limit: int, words: str) -> None:
    assert words in ratchets.verdict("scatter", limit, ["live in cli", "live in worker"])
    assert bool(words) == bool(ratchets.verdict("scatter", limit, ["live in cli", "live in worker"]))


FORWARDERS = """
class Writer(Protocol):
    async def write(self, text, *, limit):
        "Write."
        return await self._file.write(text, limit=limit)

    def flush(self):
        self._files.main.flush()

    def send(self, text):
        return self._file.send(text.strip())

    def write_all(self, texts):
        return self._file.write(texts)

    def close(self):
        self._file.close()

class Connection(asyncio.Protocol):
    def pause_writing(self):
        self._handler.pause_writing()
"""


def test_forwarder_calls_the_same_method_of_a_member_with_the_same_arguments() -> None:
    assert ["Writer.write", "Writer.flush"] == list(ratchets.forwarders(ast.parse(FORWARDERS)))


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("streams_app.settings.JournalSettings", "journal"),
        ("streams_app.settings.read_stores.Name", "read_store"),
        ("streams_app.subscribers.state.keys", "subscribers"),
        ("streams_app.settings.LiveView", "live"),
        ("streams_app.delivery.delivered", None),
        ("asyncio.live", None),
    ],
)
def test_scatter_counts_the_components_that_imports_name(name: str, component: str | None) -> None:
    assert {component} - {None} == ratchets.components_in({name})


def test_every_exception_to_a_check_carries_its_reason() -> None:
    bare = re.compile(r"#\s*(noqa(: ?[A-Z0-9, ]+)?|type: ignore(\[[\w, -]+\])?)\s*$")
    found = {label(path): [line.strip() for line in path.read_text("utf-8").splitlines() if bare.search(line)] for path in MODULES}

    assert {} == {name: lines for name, lines in found.items() if lines}


# Scripts


def header(text: str) -> set[str]:
    """Return the names of the arguments in the header: after the keys, up to an empty line, with the text in one column."""
    lines = text.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("-- KEYS "))
    column = lines[begin].index("of the shard")
    documented = lines[begin + 1 : lines.index("--", begin)]
    return {line[3:column].strip() for line in documented} - {""}


SPREAD = {"bounds.arguments()": Bounds(1, 1).arguments()}
"""Names of arguments that a store passes as a mapping, by the expression of the mapping."""


def calls(store: Path) -> dict[str, set[str]]:
    """Return script → names of the arguments with which the store calls it."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree_of(store)):
        match node:
            case ast.Call(func=ast.Attribute(attr="_call"), args=[ast.Constant(value=str(script)), *_], keywords=keywords):
                assert script not in found, f"{script} is called twice"
                found[script] = {
                    name for keyword in keywords for name in ([keyword.arg] if keyword.arg else SPREAD[ast.unparse(keyword.value)])
                }
    return found


CALLS = {folder: calls(PACKAGE / store) for folder, store in STORES.items()}


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_a_script_says_what_it_returns_and_what_it_costs(path: Path) -> None:
    text = path.read_text("utf-8")

    assert text.startswith("#!lua")
    assert ["Returns", "Cost"] == re.findall(r"^-- (Returns|Cost) +\S", text, re.MULTILINE)


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_the_store_calls_a_script_with_what_its_header_says_and_the_script_uses_it(path: Path) -> None:
    text = path.read_text("utf-8")
    whole = SETS[label(path.parent)].source(path.stem)
    used = set(re.findall(r"\barg\.(\w+)", re.sub(r"--.*", "", whole)))

    assert header(text) == CALLS[label(path.parent)][path.stem]
    assert header(text) <= used
    # ``delivery/lua/fenced.lua`` compares these if a script receives them.
    assert used - header(text) <= {"token", "fence"}


def test_every_script_is_called_and_every_call_has_a_script() -> None:
    assert {label(path) for path in SCRIPTS} == {f"{folder}/{name}.lua" for folder, found in CALLS.items() for name in found}


# Tests

TESTS = ROOT / "tests"
WITHOUT_PACKAGE = {"benchmarks", "chaos", "docs", "simulation"}
"""Folders of tests that test no package: of benchmarks, chaos, the simulation, and the docs with what is deployed."""
FEW = 3


def folders_of_tests(kind: str) -> list[str]:
    """Return the folders of unit or integration tests as the names of their packages, with the root as ``.``."""
    return [str(path.parent.relative_to(TESTS / kind)) for path in sorted((TESTS / kind).rglob("__init__.py"))]


def is_divided(package: Path) -> bool:
    return any(package.glob("*/*.py"))


@pytest.mark.parametrize("kind", ["unit", "integration"])
def test_folder_of_tests_is_named_after_the_package_or_module_that_it_tests(kind: str) -> None:
    unknown = {name for name in folders_of_tests(kind) if not (PACKAGE / name).is_dir() and not (PACKAGE / f"{name}.py").exists()}

    assert set() == unknown - WITHOUT_PACKAGE


def test_unit_tests_of_a_divided_package_are_in_its_subfolders() -> None:
    """Only modules directly in a package, or a few tests of the package as a whole, justify tests beside its subfolders."""
    found = {
        name: len(list((TESTS / "unit" / name).glob("test_*.py")))
        for name in folders_of_tests("unit")
        if is_divided(PACKAGE / name)
    }
    modules = {name: len(list((PACKAGE / name).glob("[!_]*.py"))) for name in found}

    assert {} == {name: number for name, number in found.items() if number > max(FEW, modules[name])}


def test_unit_test_named_after_a_module_is_in_the_folder_of_its_package() -> None:
    misplaced = {
        str(path.relative_to(TESTS))
        for path in (TESTS / "unit").rglob("test_*.py")
        for package in [PACKAGE / path.parent.relative_to(TESTS / "unit")]
        for module in [path.name.removeprefix("test_")]
        if not (package / module).exists() and any(package.glob(f"*/{module}"))
    }

    assert set() == misplaced
