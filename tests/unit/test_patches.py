"""What is changed in aiokafka and Faust: the names that are touched, the installed versions, the one call, the page."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.protocol.metadata import MetadataRequest

import streams_app
from streams_app.errors import ConfigurationError
from streams_app.kafka.patches import install
from streams_app.kafka.patches.private_names import TOUCHED, faults, faults_of, has
from streams_app.kafka.patches.record_batches import RecordBatches

PACKAGE = Path(streams_app.__file__).parent
PATCHES = PACKAGE / "kafka" / "patches"
PAGE = (PATCHES / "README.md").read_text("utf-8")
LIBRARIES = ("aiokafka", "faust", "mode", "asyncio")
OF_OTHERS = {"_replace", "_exit", "_current_frames", "_buckets", "_sum", "_upper_bounds", "_set_running_loop"}
"""Private names of other libraries: of named tuples, os, sys, prometheus_client, and what asyncio has for makers of loops."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


# ---- what the code touches


class Classes(ast.NodeVisitor):
    """Every class of the package: its bases as they are written, and the private names it makes its own."""

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
                and ast.unparse(inner.value) in ("self", "cls")
            ):
                own.add(inner.attr)
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                own.add(inner.id)
            elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                own.add(inner.value)  # of __slots__
        self.generic_visit(node)

    def owns(self, class_name: str, name: str) -> bool:
        return name in self.own.get(class_name, ()) or any(self.owns(base, name) for base in self.bases.get(class_name, ()))


def classes_of_the_package() -> Classes:
    found = Classes()
    for path in PACKAGE.rglob("*.py"):
        found.visit(ast.parse(path.read_text("utf-8")))
    return found


def touched(source: str, classes: Classes) -> set[str]:
    """Private names of objects that are not the package's own, as one source reads, sets, calls or imports them."""
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

    walk(ast.parse(source), None)
    return found


def words_of_patches() -> Iterator[str]:
    """Private names as text, as in ``getattr(connection, "_send")``."""
    for path in PATCHES.glob("*.py"):
        if path.name != "private_names.py":
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"_[a-z]\w*", node.value):
                    yield node.value


def overridden() -> Iterator[str]:
    """What subclasses of the libraries' classes put in the place of a private name."""
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text("utf-8")
        imports, subclasses = rf"^(from|import) ({'|'.join(LIBRARIES)})\b", r"^class .*\("
        if not all(re.search(pattern, source, re.MULTILINE) for pattern in (imports, subclasses)):
            continue
        mine = Classes()
        mine.visit(ast.parse(source))
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


def test_every_private_name_that_is_touched_is_declared_and_no_other() -> None:
    classes = classes_of_the_package()
    found = {name for path in PACKAGE.rglob("*.py") for name in touched(path.read_text("utf-8"), classes)}
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
def test_a_private_name_of_others_is_seen_however_it_is_touched(source: str) -> None:
    classes = Classes()
    classes.visit(ast.parse(source))

    assert {"_inner"} == touched(source, classes)


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __init__(self):\n        self._inner = 1\n    def f(self):\n        return self._inner",
        "class A:\n    def _inner(self): ...\nclass B(A):\n    def f(self):\n        return self._inner() or super()._inner()",
        "class A:\n    __slots__ = ('_inner',)\n    def f(self):\n        return self._inner",
        "def _inner(): ...\n_inner()",
    ],
)
def test_a_private_name_of_ones_own_is_not_one_of_others(source: str) -> None:
    classes = Classes()
    classes.visit(ast.parse(source))

    assert set() == touched(source, classes)


# ---- the installed versions


@pytest.mark.parametrize("owner", TOUCHED)
def test_the_installed_versions_have_what_is_touched(owner: str) -> None:
    importlib.import_module(owner.partition(":")[0])

    assert () == faults_of(owner)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Nothing is remembered about the installed versions, before and after."""
    faults_of.cache_clear()
    yield
    faults_of.cache_clear()


@pytest.mark.usefixtures("unchecked")
def test_a_name_that_is_missing_is_told_with_package_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Fetcher, "_proc_fetch_request")
    with pytest.raises(ConfigurationError) as caught:
        install()

    expected = [
        "aiokafka 0.14.0 has no aiokafka.consumer.fetcher.Fetcher._proc_fetch_request, which streams_app relies on:"
        " install the versions streams_app asks for"
    ]
    assert expected == [re.sub(r"0\.14\.\d+", "0.14.0", fault) for fault in caught.value.faults]


@pytest.mark.usefixtures("unchecked")
def test_a_class_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fetcher, "PartitionRecords")

    assert ["aiokafka.consumer.fetcher.PartitionRecords"] == [re.findall(r"has no (\S+),", fault)[0] for fault in faults()]


@pytest.mark.usefixtures("unchecked")
def test_a_method_that_takes_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def proc_fetch_request(self: Fetcher, assignment: object, node: int, request: object) -> None:
        """Its third parameter has another name."""

    monkeypatch.setattr(Fetcher, "_proc_fetch_request", proc_fetch_request)

    assert 1 == len([fault for fault in faults() if "has changed the parameters of" in fault])


@pytest.mark.usefixtures("unchecked")
def test_a_method_may_take_more_that_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    async def proc_fetch_request(self: Fetcher, assignment: object, node_id: int, request: object, *, more: int = 1) -> None:
        """It can be called as before."""

    monkeypatch.setattr(Fetcher, "_proc_fetch_request", proc_fetch_request)

    assert [] == faults()


@pytest.mark.usefixtures("unchecked")
def test_an_attribute_that_objects_no_longer_get_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(self: Fetcher) -> None:
        self._records = {}

    monkeypatch.setattr(Fetcher, "__init__", init)
    missing = {re.findall(r"has no \S+\.(\w+),", fault)[0] for fault in faults()}

    assert {"_closed", "_fetch_max_wait_ms", "_fetch_waiters", "_subscriptions", "_wait_consume_future"} == missing


# ---- the one call


def in_place() -> list[object]:
    return [
        fetcher.MemoryRecords,
        AIOKafkaConnection.send,
        AIOKafkaConnection._send_sasl_token,
        MetadataRequest.build,
        AIOKafkaClient._metadata_update,
        GroupCoordinator._send_req,
    ]


def test_installing_twice_is_installing_once() -> None:
    install()
    once = in_place()
    install()

    assert once == in_place()
    assert RecordBatches is fetcher.MemoryRecords
    assert all(hasattr(each, "__wrapped__") and not hasattr(each.__wrapped__, "__wrapped__") for each in once[1:])


LOOK = """
import aiokafka, sys
import streams_app, streams_app.app, streams_app.kafka.client
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer import fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.record.memory_records import MemoryRecords
functions = [AIOKafkaConnection.send, AIOKafkaConnection._send_sasl_token, MetadataRequest.build, AIOKafkaClient._metadata_update]
functions.append(GroupCoordinator._send_req)
print([each.__module__.partition(".")[0] for each in functions], fetcher.MemoryRecords is MemoryRecords)
print([hasattr(each, "__wrapped__") for each in functions])
"""


def test_importing_streams_app_patches_nothing() -> None:
    out = subprocess.run([sys.executable, "-c", LOOK], check=True, capture_output=True, text=True).stdout

    assert f"{['aiokafka'] * 5} True\n{[False] * 5}\n" == out


# ---- the page


def test_the_page_has_one_row_for_each_patch() -> None:
    rows = re.findall(r"^\| \[(\w+\.py)\]\((\w+\.py)\) \|", PAGE, re.MULTILINE)

    assert all(text == link for text, link in rows)
    assert sorted(path.name for path in PATCHES.glob("*.py") if path.name not in ("__init__.py", "private_names.py")) == sorted(
        text for text, _ in rows
    )


def test_every_row_of_the_page_is_filled() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| [")]

    assert [] == [line for line in rows if not all(cell.strip() for cell in line.strip("|").split("|"))]
