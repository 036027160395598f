"""The patches of aiokafka and Faust: the installed versions, the single call, their documentation."""

from __future__ import annotations

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

from streams_app.errors import ConfigurationError
from streams_app.kafka import patches
from streams_app.kafka.patches import install
from streams_app.kafka.patches.private_names import TOUCHED, faults, faults_of
from streams_app.kafka.patches.record_batches import RecordBatches

PATCHES = Path(patches.__file__).parent
PAGE = (PATCHES / "README.md").read_text("utf-8")


# ---- the installed versions


@pytest.mark.parametrize("owner", TOUCHED)
def test_installed_versions_have_every_patched_name(owner: str) -> None:
    importlib.import_module(owner.partition(":")[0])

    assert () == faults_of(owner)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Forget the result of the version check, before and after the test."""
    faults_of.cache_clear()
    yield
    faults_of.cache_clear()


@pytest.mark.usefixtures("unchecked")
def test_missing_name_is_reported_with_package_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Fetcher, "_proc_fetch_request")
    with pytest.raises(ConfigurationError) as caught:
        install()

    expected = [
        "aiokafka 0.14.0 has no aiokafka.consumer.fetcher.Fetcher._proc_fetch_request, which streams_app relies on:"
        " install the versions streams_app asks for"
    ]
    assert expected == [re.sub(r"0\.14\.\d+", "0.14.0", fault) for fault in caught.value.faults]


@pytest.mark.usefixtures("unchecked")
def test_missing_class_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fetcher, "PartitionRecords")

    assert ["aiokafka.consumer.fetcher.PartitionRecords"] == [re.findall(r"has no (\S+),", fault)[0] for fault in faults()]


@pytest.mark.usefixtures("unchecked")
def test_method_with_another_signature_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def proc_fetch_request(self: Fetcher, assignment: object, node: int, request: object) -> None:
        """Stand for a method whose third parameter has another name."""

    monkeypatch.setattr(Fetcher, "_proc_fetch_request", proc_fetch_request)

    assert 1 == len([fault for fault in faults() if "has changed the parameters of" in fault])


@pytest.mark.usefixtures("unchecked")
def test_method_may_have_additional_defaulted_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    async def proc_fetch_request(self: Fetcher, assignment: object, node_id: int, request: object, *, more: int = 1) -> None:
        """Stand for a method that can be called as before."""

    monkeypatch.setattr(Fetcher, "_proc_fetch_request", proc_fetch_request)

    assert [] == faults()


@pytest.mark.usefixtures("unchecked")
def test_missing_instance_attribute_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(self: Fetcher) -> None:
        self._records = {}

    monkeypatch.setattr(Fetcher, "__init__", init)
    missing = {re.findall(r"has no \S+\.(\w+),", fault)[0] for fault in faults()}

    assert missing == {
        "_client", "_closed", "_fetch_max_wait_ms", "_fetch_waiters", "_prefetch_backoff", "_subscriptions", "_wait_consume_future",
    }  # fmt: skip


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


def test_install_is_idempotent() -> None:
    install()
    once = in_place()
    install()

    assert once == in_place()
    assert RecordBatches is fetcher.MemoryRecords
    assert all(hasattr(each, "__wrapped__") and not hasattr(each.__wrapped__, "__wrapped__") for each in once[1:])


PATCHED_FUNCTIONS_PROGRAM = """
import aiokafka, sys
import streams_app, streams_app.worker.faust_app, streams_app.kafka.client
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
    out = subprocess.run([sys.executable, "-c", PATCHED_FUNCTIONS_PROGRAM], check=True, capture_output=True, text=True).stdout

    assert f"{['aiokafka'] * 5} True\n{[False] * 5}\n" == out


# ---- the page


def test_patches_page_has_one_row_for_each_patch() -> None:
    rows = re.findall(r"^\| \[(\w+\.py)\]\((\w+\.py)\) \|", PAGE, re.MULTILINE)

    assert all(text == link for text, link in rows)
    assert sorted(path.name for path in PATCHES.glob("*.py") if path.name not in ("__init__.py", "private_names.py")) == sorted(
        text for text, _ in rows
    )


def test_every_row_of_the_patches_page_is_complete() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| [")]

    assert [] == [line for line in rows if not all(cell.strip() for cell in line.strip("|").split("|"))]
