"""Compares the native core with its reference in Python on mutated batches of events: ``python -m tests.helpers.folding.native``.

A case is one event. Batches are built of usual and unusual events, then bytes of values, or of the batch itself, are changed.
For each batch, random groups are also rendered and packed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from streams_app.fold import Fold
from streams_app.folding.core.chunks import Chunk, ChunkCutter
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.native_chunks import NativeChunkCutter
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.folding.reading.fast import ColumnarReader, FastReader
from streams_app.folding.reading.reader import RangeFaults
from streams_app.folding.store.arguments import GroupPacker, PackedSessions
from streams_app.folding.store.codec import pack
from streams_app.native import NativeCore, native_core, native_fault
from streams_app.settings import Limits
from tests.helpers.folding import native_records

LIMITS = Limits(value_bytes=2_000, key_bytes=40, name_bytes=30, names_per_event=5)
SETTINGS: dict[str, Any] = {"name": "f", "source": "s", "output": "o", "group_key": "id", "changed": "m"}
FOLDS = [
    Fold(**SETTINGS, quiet_period="2s"),
    Fold(**SETTINGS, quiet_period="300ms", backlog="sessions"),
    Fold(**SETTINGS, quiet_period="2s", backlog="sessions", max_changed=3),
    Fold(**SETTINGS, quiet_period="2s", max_events=4, max_hold="3s"),
]
SCALARS = ["a", "", "é", "a" * 39, "a" * 41, "\ud800", "\x00", 'q"\\', 1, -1.5, 1e300, True, None, [], {}]
NAMES = ["likes", "shares", "views", "ü", "", "n" * 31, 'x"', "id", "m"]
TEXTS = [
    b"", b"null", b"{", b"[]", b'{"id":"a","m":{"likes":1},"m":{"views":1}}', b'{"id":"a","id":"b","m":["likes"]}',
    b'{"id":"a","m":{"likes":01}}', b'{"id":"\\u0061","m":{"likes":1}}', b'{"id":"a","m":{"likes":1}} ',
    b'{"id":"a","m":{"likes":1e999}}',
    b'{"id":"\xff","m":{"likes":1}}', b'{"id":"a","m":{"likes":"\xc3\xa9","x":"\\ud800"}}', b'\xef\xbb\xbf{"id":"a","m":["likes"]}',
    b'{"id":"a","m":["likes"],"x":' + b"[" * 150 + b"]" * 150 + b"}", b'{"id":"a","m":["likes"],"x":' + b"9" * 400 + b"}",
    b'{"id":"a" , "m":\t["likes","likes"],\r\n"x":-0.0E-7}', b'{"m":"likes","id":"a"}', b'{"id":"a","m":{"likes":1},}',
]  # fmt: skip
"""Values beside those of :func:`value`, usual and unusual."""


def required_core() -> NativeCore:
    """Return the native core; skip the test if it is not installed, in CI fail it."""
    if (fault := native_fault()) is not None and not os.environ.get("CI"):
        pytest.skip(f"{fault}: make native")
    core = native_core("require")
    assert core is not None
    return core


@dataclass
class Outcome:
    """What a range was read as; texts, so that differences are readable."""

    chunks: list[Any]
    packed: list[Any]
    groups: list[list[bytes]]
    faults: dict[str, Any]


def value(random_of: random.Random) -> bytes | None:
    """Return the value of an event, most of them usual."""
    kind = random_of.random()
    if kind < 0.02:
        return random_of.choice([None, *TEXTS])
    names = random_of.sample(NAMES[:3] if kind < 0.8 else NAMES, random_of.randint(0 if kind > 0.9 else 1, 3))
    changed: Any = names if kind < 0.1 else {name: random_of.choice(SCALARS[6:] if kind > 0.6 else [1]) for name in names}
    event = {"id": f"g{random_of.randrange(8)}" if kind < 0.85 else random_of.choice(SCALARS), "m": changed, "at": kind}
    if kind > 0.95:
        event.pop(random_of.choice(["id", "m"]))
    found = json.dumps(event, ensure_ascii=kind > 0.5).encode("utf-8", "surrogatepass")
    return mutated(random_of, found) if random_of.random() < 0.2 else found


def mutated(random_of: random.Random, text: bytes) -> bytes:
    """Change, remove or repeat some bytes."""
    changed = bytearray(text)
    for _ in range(random_of.randint(1, 3)):
        at = random_of.randrange(len(changed) + 1)
        kind = random_of.randrange(3)
        if kind == 0 and at < len(changed):
            changed[at] = random_of.choice(b'{}[]",:\\ \x00\xff0eu-.') if random_of.random() < 0.7 else random_of.randrange(256)
        elif kind == 1:
            del changed[at : at + random_of.randint(1, 4)]
        else:
            changed[at:at] = changed[at : at + random_of.randint(1, 4)]
    return bytes(changed)


def batch(random_of: random.Random, events: int, compression: int = 0) -> bytes:
    """Return a record batch of random events, some with record keys that differ from their group key, and some with gaps."""
    builder = DefaultRecordBatchBuilder(2, compression, 0, 0, 0, 0, 1 << 30)
    offset, time_ms = 0, random_of.choice([1_000, 10**12])
    for _ in range(events):
        found = value(random_of)
        time_ms = max(0, time_ms + random_of.choice([0, 1, 1, 5, 400, 3_000, -50]))
        key = random_of.choice([None, b"g1", b"g2", b""])
        builder.append(offset, time_ms, key, found, [("h", b"x")] if random_of.random() < 0.05 else [])
        offset += random_of.choice([1, 1, 1, 7])
    return bytes(builder.build())


def outcome(reader: FastReader, records: Sequence[Any], fold: Fold, cap_ms: int) -> Outcome:
    """Read and cut all of a range."""
    faults, end = RangeFaults(), records[-1].offset + 3
    events, bounds = reader.events(records, None, faults), Bounds.of(fold)
    cutter: Any
    if isinstance(reader, ColumnarReader) and type(events).__module__ == "streams_app_native":
        cutter = NativeChunkCutter(events, -1, end, bounds)  # type: ignore[arg-type]
    else:
        cutter = ChunkCutter(events, -1, end, bounds, keeps_values=False)
    chunks, packed = list[Any](), list[Any]()
    packer = GroupPacker(bounds, b"epoc", 4, keeps_values=False)
    while cutter.above < end:
        chunks.append(cutter.next(RangeTime(cap_ms, None), 500))
        packed += arguments(packer, chunks[-1])
    rejected = [(one.record.offset, one.record.value, one.reason, one.detail) for one in faults.rejected]
    shown = {"misrouted": faults.misrouted, "rejected": rejected}
    return Outcome([normal(chunk) for chunk in chunks], packed, [sorted(chunk.groups) for chunk in chunks], shown)


def arguments(packer: GroupPacker, chunk: Chunk) -> Iterator[tuple[int, bytes, list[SealedGroup], PackedSessions]]:
    """Pack the groups of a chunk for several calls of the script, at two states of the clock, and in both forms of a group."""
    members = sorted(chunk.groups)
    for begin, clock_ms, silent_from_ms, may_pack in [
        (0, chunk.clock_ms, 0, False),
        (0, chunk.clock_ms, 0, True),
        (len(members) // 3, chunk.clock_ms + 9_999, chunk.clock_ms + 7, True),
    ]:
        for at in range(begin, len(members), 3):
            sent = packer.groups(chunk, members[at : at + 3], clock_ms, silent_from_ms, {}, may_pack=may_pack)
            packed = pack(sent.values) if sent.packed is None else sent.packed.packed
            yield sent.count, packed, sent.sealed, sent.sessions


def normal(chunk: Any) -> dict[str, Any]:
    """Return a chunk with the names of each run as a sorted list: a set may be a mask or a mapping."""
    groups = {
        member: [(*(getattr(run, name) for name in run.__struct_fields__ if name != "names"), sorted(run.changed)) for run in runs]
        for member, runs in chunk.groups.items()
    }
    return {name: getattr(chunk, name) for name in ("above", "to", "clock_ms", "events", "pauses", "paused")} | {"groups": groups}


def fields(record: Any) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, list(record.headers)


def difference(random_of: random.Random, core: NativeCore) -> str | None:
    """Compare one random batch, read by all folds; return what differs."""
    data = batch(random_of, random_of.randint(1, 200))
    if random_of.random() < 0.1:
        data = data[:61] + mutated(random_of, data[61:])
    records = core.Records.parse(data[:61], data[61:])
    if not records:
        return None  # the parser of aiokafka decides
    theirs = list(DefaultRecordBatch(data))
    if [*map(fields, theirs)] != [*map(fields, records)]:
        return f"records of {data!r}"
    cap_ms = random_of.choice([2_000, 10**13])
    for fold in FOLDS:
        reference, native = FastReader(fold, LIMITS), ColumnarReader(fold, LIMITS, core)
        for _ in range(2):  # the first time, all names are new
            expected, found = outcome(reference, theirs, fold, cap_ms), outcome(native, records, fold, cap_ms)
            if expected != found:
                return f"{fold} of {data!r}:\n{expected}\n{found}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    core = required_core()
    print(f"seed {given.seed}", flush=True)
    random_of = random.Random(given.seed)
    for number in range(given.cases // 100):  # batches have 100 events on average
        if found := difference(random_of, core) or native_records.difference(random_of, core):
            print(f"DIFFERENT in batch {number:,}, seed {given.seed}: {found}")
            return 1
    print(f"{given.cases:,} cases are equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
