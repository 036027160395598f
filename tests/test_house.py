"""The rules of the house that a program can check: imports, sizes, docstrings, script headers, clocks."""

from __future__ import annotations

import ast
import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "streams_app"
MODULES = sorted(PACKAGE.rglob("*.py"))
LUA = sorted(PACKAGE.rglob("*.lua"))
INCLUDED = {"beyond", "joining"}
"""Lua that scripts share."""

SCRIPTS = [path for path in LUA if path.stem not in INCLUDED]
CHANGELOG = ROOT / "CHANGELOG.md"

MOST_LINES = 320
TOO_LONG = {"folding/store/lua/fold.lua", "folding/shard/shard.py"}
"""Until a range is folded by the cursor alone."""

BANNED_IN_PURE = {"redis", "faust", "aiokafka", "time", "os", "asyncio"}
PURE_FOLDERS = {"folding/core", "folding/reading"}
"""Whatever their files import, by way of others of ours, too, touches nothing."""


def label(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


# Imports and clocks


def imported(source: str) -> set[str]:
    """Names of all modules, and of what is taken from them, that a source imports itself, at any depth of it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def is_for_types(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.unparse(node.test)


def at_import(source: str, *, with_types: bool = False) -> str:
    """What of a source runs when it is imported: nothing within functions; for the type checker alone if that is wanted."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function or (isinstance(node, ast.If) and is_for_types(node) and not with_types):
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.If)
            node.body = [ast.Pass()]
    return ast.unparse(tree)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


OURS = {module_of(path): path for path in MODULES}


def named(source: str) -> set[str]:
    """Modules that a source imports, or takes something from."""
    return {name if name in OURS else name.rpartition(".")[0] or name for name in imported(source)}


NEEDS = {module: named(at_import(path.read_text("utf-8"))) for module, path in OURS.items()}
"""Module → modules that are imported with it."""

NAMES = {module: named(at_import(path.read_text("utf-8"), with_types=True)) for module, path in OURS.items()}
"""The same with what is imported for the type checker alone."""


def reached(module: str) -> set[str]:
    """What is imported with a module, by way of others of ours, too."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = NEEDS.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


FLOORS = [
    "settings", "delivery", "kafka/patches", "kafka", "folding", "folding/core", "folding/reading", "folding/store",
    "folding/shard", "folding/agents", "read_store", "operating", "checking", "embedded", "demo", "cli",
]  # fmt: skip
"""Folders from the lowest to the highest: each may import what stands before it."""


def rooms() -> dict[str, set[str]]:
    """Room → rooms that its modules name in imports."""
    found: dict[str, set[str]] = {}
    for module in OURS.keys() - {"streams_app"}:
        needed = NAMES[module] & (OURS.keys() - {"streams_app"})
        found.setdefault(room(module), set()).update({room(other) for other in needed} - {room(module)})
    return found


def room(module: str) -> str:
    """The folder of a module; a file of the package itself is a room of its own."""
    folder = OURS[module].parent
    return module if folder == PACKAGE else label(folder)


def says_it_is_pure(path: Path) -> bool:
    return "(pure" in (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]


_CLOCKS = {
    "time": {
        "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "localtime", "gmtime",
    },
    "datetime": {"now", "utcnow", "today"},
}  # fmt: skip


WAITS = {"kafka/consumer_thread.py": ["loop.time", "loop.time"]}
"""What is left of a wait, by the clock of the loop that waits; nothing is decided by it."""


def clock_reads(source: str) -> list[str]:
    """Expressions of a source that read a clock."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in _CLOCKS}
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [f"from time import {alias.name}" for alias in node.names if alias.name in _CLOCKS["time"]]
        elif isinstance(node, ast.ImportFrom) and node.module == "datetime":
            modules |= {alias.asname or alias.name: "datetime" for alias in node.names if alias.name in ("datetime", "date")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            base = node.value.value if isinstance(node.value, ast.Attribute) else node.value
            module = modules.get(base.id) if isinstance(base, ast.Name) else None
            is_loop = node.attr == "time" and re.search(r"loop(\(\))?$", ast.unparse(node.value)) is not None
            if is_loop or (module and node.attr in _CLOCKS[module]):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", [path for path in MODULES if label(path.parent) in PURE_FOLDERS], ids=label)
def test_pure_folders_reach_nothing_that_touches_the_world(path: Path) -> None:
    needed = imported(path.read_text("utf-8")) | reached(module_of(path))

    assert set() == {name.partition(".")[0] for name in needed} & BANNED_IN_PURE


@pytest.mark.parametrize("path", [path for path in MODULES if says_it_is_pure(path)], ids=label)
def test_files_that_say_they_are_pure_import_nothing_that_touches_the_world(path: Path) -> None:
    needed = imported(path.read_text("utf-8"))

    assert set() == {name.partition(".")[0] for name in needed} & BANNED_IN_PURE


def test_no_circle_of_files() -> None:
    list(TopologicalSorter({module: (NAMES[module] & OURS.keys()) - {module} for module in OURS}).static_order())


def test_no_circle_of_folders() -> None:
    list(TopologicalSorter(rooms()).static_order())


def test_folders_import_downward_only() -> None:
    upward = {
        f"{name} imports {other}"
        for name, needed in rooms().items()
        for other in needed
        if name in FLOORS and other in FLOORS and FLOORS.index(other) > FLOORS.index(name)
    }

    assert set() == upward
    assert set() == {name for name in rooms() if "/" in name or not name.startswith("streams_app.")} - set(FLOORS)


def test_the_delivery_knows_nothing_of_what_stands_on_it() -> None:
    found = {name for module in OURS if module.startswith("streams_app.delivery") for name in NAMES[module] & OURS.keys()}

    assert {"clock", "errors", "redis_client", "status"} == {
        name.removeprefix("streams_app.") for name in found if not name.startswith("streams_app.delivery.")
    }


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import redis.asyncio", "redis.asyncio"),
        ("from aiokafka.structs import TopicPartition", "aiokafka.structs.TopicPartition"),
        ("from streams_app import clock", "streams_app.clock"),
        ("def f():\n    import os.path as p", "os.path"),
        ("import json, time", "time"),
    ],
)
def test_an_import_is_seen_wherever_it_stands(source: str, module: str) -> None:
    assert module in imported(source)


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "clock.py"], ids=label)
def test_no_clock_is_read_outside_clock_py(path: Path) -> None:
    assert WAITS.get(label(path), []) == clock_reads(path.read_text("utf-8"))


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_no_script_reads_the_clock_of_redis(path: Path) -> None:
    assert None is re.search(r"call\(\s*['\"]TIME['\"]|os\.time|os\.clock", path.read_text("utf-8"), re.IGNORECASE)


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nt.monotonic_ns()",
        "from time import perf_counter",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.utcnow()",
        "from datetime import date as d\nd.today()",
        "import asyncio\nasyncio.get_running_loop().time()",
        "import time\nread = time.time",
    ],
)
def test_a_read_of_a_clock_is_seen_however_it_is_written(source: str) -> None:
    assert 1 == len(clock_reads(source))


def test_what_reads_no_clock_is_left_alone() -> None:
    source = "import time\nfrom datetime import datetime\ntime.sleep(1)\ndatetime.fromtimestamp(0)\nredis.time()\nrow.now()"

    assert [] == clock_reads(source)


# Files


@pytest.mark.parametrize("path", [path for path in MODULES + LUA if label(path) not in TOO_LONG], ids=label)
def test_every_file_is_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_every_exception_to_a_check_carries_its_reason(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    bare = [line.strip() for line in lines if re.search(r"#\s*(noqa(: ?[A-Z0-9, ]+)?|type: ignore(\[[\w, -]+\])?)\s*$", line)]

    assert [] == bare


# Scripts

_SLOT = re.compile(r"^-- (KEYS|ARGV)\[(\d+)\]\s+(\w+)\s+(\S.*)$")
_BOUND = re.compile(r"(KEYS|ARGV)\[(\d+)\]")
_TYPES = ("hash", "zset", "set", "list", "string", "stream", "prefix of ")
_OTHER_WORDS = {("seal", "all"): "everything", ("finish", "ranges"): "packed"}
"""Where an argument of the method has, for a reason, another word than the slot of the script."""

Slots = dict[tuple[str, int], str]


def header(text: str) -> tuple[Slots, dict[tuple[str, int], str]]:
    """Names of the slots as the header gives them, and what it says about each."""
    names, about = {}, {}
    for line in text.splitlines():
        if match := _SLOT.match(line):
            slot = match[1], int(match[2])
            assert slot not in names, f"{slot} twice"
            names[slot], about[slot] = match[3], match[4]
    return names, about


def bound(text: str) -> Slots:
    """Names of the slots as the script binds them: in its first lines, packed ones where they are unpacked.

    A script that is refused should not have unpacked thousands of groups.
    """
    found: Slots = {}
    code = [line for line in text.splitlines() if not line.startswith(("#!", "--"))]
    end = code.index("")
    for position, line in enumerate(code):
        if not _BOUND.search(line):
            continue
        assert position < end or "= cmsgpack.unpack(ARGV" in line, f"bound too late: {line}"
        names, _, values = line.removeprefix("local ").partition(" = ")
        parts = re.split(r",\s*(?![^(]*\))", values)
        for name, value in zip(re.split(r",\s*", names), parts, strict=True):
            for kind, number in _BOUND.findall(value):
                slot = kind, int(number)
                assert slot not in found, f"{slot} twice"
                found[slot] = name.strip()
    return found


def calls(source: str) -> dict[str, tuple[list[str], list[str]]]:
    """Script → its keys and its arguments, as the store writes them."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and "_scripts" in ast.unparse(node.func.value):
            assert isinstance(node.func.slice, ast.Constant)
            given: dict[str, list[str]] = {"keys": [], "args": []}
            for keyword in node.keywords:
                assert isinstance(keyword.value, ast.List)
                given[str(keyword.arg)] = [ast.unparse(element) for element in keyword.value.elts]
            found[str(node.func.slice.value)] = given["keys"], given["args"]
    return found


CALLS = calls((PACKAGE / "folding" / "store" / "shard_store.py").read_text("utf-8"))


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_the_header_of_a_script_is_complete(path: Path) -> None:
    text = path.read_text("utf-8")
    names, about = header(text)
    for kind in ("KEYS", "ARGV"):
        numbers = [number for slot_kind, number in names if slot_kind == kind]
        assert list(range(1, len(numbers) + 1)) == numbers
    assert all(text.startswith(_TYPES) for (kind, _), text in about.items() if kind == "KEYS"), about
    assert text.startswith("#!lua")
    for word in ("Returns", "Cost"):
        assert re.search(rf"^-- {word} +\S", text, re.MULTILINE), f"no {word}"


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_a_script_binds_every_slot_of_its_header_once_before_its_work(path: Path) -> None:
    text = path.read_text("utf-8")
    names, _ = header(text)
    local = bound(text)

    assert names.keys() == local.keys()
    # ``group_prefix`` may be bound to ``prefix``.
    assert {} == {slot: (name, local[slot]) for slot, name in names.items() if not f"_{name}".endswith(f"_{local[slot]}")}


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_the_store_calls_a_script_with_what_its_header_says(path: Path) -> None:
    names, _ = header(path.read_text("utf-8"))
    keys, args = CALLS[path.stem]

    assert [f"keys.{name}" for (kind, _), name in names.items() if kind == "KEYS"] == keys
    wanted = [name for (kind, _), name in names.items() if kind == "ARGV"]
    assert len(wanted) == len(args)
    words = [_OTHER_WORDS.get((path.stem, name), name) for name in wanted]
    assert [] == [(word, given) for word, given in zip(words, args, strict=True) if word not in given]


def test_every_script_is_called_and_every_call_has_a_script() -> None:
    assert {path.stem for path in SCRIPTS} == CALLS.keys()


def test_the_version_is_in_the_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]

    assert re.search(rf"^#+ .*{re.escape(version)}", CHANGELOG.read_text("utf-8"), re.MULTILINE)
