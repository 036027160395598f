"""Events that the native core reads and aggregates, compared with its reference in Python."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from streams_app.folding.core import names
from streams_app.folding.core.chunks import ChunkCutter
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.native_chunks import NativeChunkCutter
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.folding.reading import fast
from streams_app.folding.reading.fast import ColumnarReader, FastReader
from streams_app.folding.reading.reader import RangeFaults
from streams_app.folding.store.arguments import GroupPacker
from streams_app.native import ColumnPacker, EventColumns, NativeCore
from tests.helpers.folding.native import FOLDS, LIMITS, arguments, batch, difference, normal, outcome, required_core


@pytest.fixture(autouse=True)
def _no_name_has_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first 1 000 names of a process have a bit, and other tests of this process have read names, too."""
    for table in ("_bits", "_in_order", "_of_mask"):
        monkeypatch.setattr(names, table, type(getattr(names, table))())


@pytest.fixture
def _any_number_may_be_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "FEW_UNUSUAL", 1_000_000)


@pytest.mark.usefixtures("_any_number_may_be_unusual")
@pytest.mark.parametrize("seed", range(40))
def test_native_core_reads_and_cuts_random_batches_as_python_does(seed: int) -> None:
    assert difference(random.Random(seed), required_core()) is None


def test_usual_events_are_read_natively_once_their_names_are_known() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, 0, 0, 0, 1 << 30)
    for offset in range(100):
        builder.append(offset, 1_000, b"a", b'{"id":"a","m":{"likes":1}}', [])
    data, core, faults = bytes(builder.build()), required_core(), RangeFaults()
    ColumnarReader(FOLDS[0], LIMITS, core).events(core.Records.parse(data[:61], data[61:]), None, faults)

    assert 99 == faults.native


def test_events_are_read_natively_for_each_name_that_has_a_bit() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, 0, 0, 0, 1 << 30)
    for offset in range(2 * names.MASKED_NAMES):
        changed = b'{"%d":1}' % (offset % names.MASKED_NAMES)
        builder.append(offset, 1_000, b"a", b'{"id":"a","m":%b}' % changed, [])
    data, core = bytes(builder.build()), required_core()
    records, reader = core.Records.parse(data[:61], data[61:]), ColumnarReader(FOLDS[0], LIMITS, core)
    found: list[Any] = []
    natively = 0
    for at in range(0, len(records), 50):
        faults = RangeFaults()
        found += reader.events(records[at : at + 50], None, faults)
        natively += faults.native

    assert [[str(at % names.MASKED_NAMES)] for at in range(len(records))] == [list(names.unmasked(event[3])) for event in found]
    assert names.MASKED_NAMES == natively


class Faulty:
    """The native core, or its events, with one method that panics from the given call on."""

    def __init__(self, real: Any, name: str, calls: int = 0) -> None:
        self._real, self._name, self._left = real, name, calls

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            self._left -= 1
            if self._left < 0:
                raise RuntimeError("the native core panicked")
        return getattr(self._real, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._real)


def test_range_is_read_by_python_after_a_panic(caplog: pytest.LogCaptureFixture) -> None:
    core, data = required_core(), batch(random.Random(1), 50)
    records, expected = core.Records.parse(data[:61], data[61:]), FastReader(FOLDS[0], LIMITS)
    panicking = SimpleNamespace(Reader=core.Reader, EventColumns=lambda records: Faulty(core.EventColumns(records), "advance", 3))
    reader = ColumnarReader(FOLDS[0], LIMITS, cast("NativeCore", panicking))

    for _ in range(2):
        assert outcome(expected, list(records), FOLDS[0], 10**13) == outcome(reader, records, FOLDS[0], 10**13)
    assert ["native core failed, events are read by Python from now on fold=f"] == [line.getMessage() for line in caplog.records]


@pytest.mark.usefixtures("_any_number_may_be_unusual")
@pytest.mark.parametrize("calls", [0, 1, 2])
def test_range_is_aggregated_by_python_after_a_panic(calls: int) -> None:
    fold, core, data = FOLDS[2], required_core(), batch(random.Random(1), 3_000)
    records = core.Records.parse(data[:61], data[61:])
    events = cast("EventColumns", ColumnarReader(fold, LIMITS, core).events(records, None, RangeFaults()))
    listed, end, bounds = list(events), records[-1].offset, Bounds.of(fold)
    reference = ChunkCutter(listed, -1, end, bounds, keeps_values=False)
    cutter = NativeChunkCutter(cast("EventColumns", Faulty(events, "next_chunk", calls)), -1, end, bounds)
    while reference.above < end:
        expected = reference.next(RangeTime(10**13, None), 500)

        assert normal(expected) == normal(cutter.next(RangeTime(10**13, None), 500))
    assert cutter.above == end


@pytest.mark.usefixtures("_any_number_may_be_unusual")
def test_groups_are_packed_by_python_after_a_panic() -> None:
    fold, core, data = FOLDS[1], required_core(), batch(random.Random(1), 300)
    records = core.Records.parse(data[:61], data[61:])
    events = cast("EventColumns", ColumnarReader(fold, LIMITS, core).events(records, None, RangeFaults()))
    bounds = Bounds.of(fold)
    chunk = NativeChunkCutter(events, -1, records[-1].offset, bounds).next(RangeTime(10**13, None), 500)
    expected = list(arguments(GroupPacker(bounds, b"epoc", 4, keeps_values=False), chunk))
    faulty = GroupPacker(bounds, b"epoc", 4, keeps_values=False)
    faulty._native = cast("ColumnPacker", Faulty(None, "pack"))

    assert expected == list(arguments(faulty, chunk))


def test_range_with_many_unusual_events_is_read_by_python_as_a_whole() -> None:
    core = required_core()
    builder = DefaultRecordBatchBuilder(2, 0, 0, 0, 0, 0, 1 << 30)
    for offset in range(400):
        builder.append(offset, 1_000, None, b'{"id":"\\u0061","m":{"likes":1}}', [])
    data = bytes(builder.build())
    records, faults = core.Records.parse(data[:61], data[61:]), RangeFaults()
    events = list(ColumnarReader(FOLDS[0], LIMITS, core).events(records, None, faults))

    assert (400, 0) == (len(events), faults.native)


@pytest.mark.usefixtures("_any_number_may_be_unusual")
@pytest.mark.parametrize("more", [0, 1])
def test_both_cores_pack_a_group_up_to_the_same_size(more: int) -> None:
    names = [f"{number:029d}" for number in range(12)] + ["x" * (25 + more)]
    fold, core = FOLDS[0], required_core()
    builder = DefaultRecordBatchBuilder(2, 0, 0, 0, 0, 0, 1 << 30)
    for offset, name in enumerate(names):
        builder.append(offset, 1_000, None, json.dumps({"id": "a", "m": [name]}).encode(), [])
    data = bytes(builder.build())
    records, bounds = core.Records.parse(data[:61], data[61:]), Bounds.of(fold)
    found = []
    for reader in (FastReader(fold, LIMITS), ColumnarReader(fold, LIMITS, core)):
        events: Any = reader.events(records, None, RangeFaults())
        is_columns = type(events).__module__ == "streams_app_native"
        cutter: Any = (
            NativeChunkCutter(events, -1, len(names), bounds)
            if is_columns
            else ChunkCutter(events, -1, len(names), bounds, keeps_values=False)
        )
        chunk = cutter.next(RangeTime(10**13, None), 500)
        sent = GroupPacker(bounds, b"epoc", 4, keeps_values=False).groups(chunk, [b"sa"], 500, 0, {}, may_pack=True)
        packed = msgpack.packb(sent.values) if sent.packed is None else sent.packed.packed
        found.append((is_columns, len(msgpack.unpackb(packed, raw=True)[1])))

    assert [(False, 4 + 2 * len(names) if more else 3), (True, 4 + 2 * len(names) if more else 3)] == found
