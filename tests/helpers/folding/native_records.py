"""Compares records that the native core renders and packs with those of Python, byte for byte."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder

from streams_app.delivery.producer import OutgoingRecord
from streams_app.folding.core.names import shared_names
from streams_app.folding.core.record import RecordShape, Renderer, SealedGroup
from streams_app.kafka.rendered_records import FOLD_ID, RenderedRecords
from streams_app.kafka.topic_producer import PackedBatch, TopicProducer
from streams_app.native import NativeCore

NAMES_ONLY = RecordShape("account-metrics", ("account_id",), "metrics", "names")
SHAPES = [
    NAMES_ONLY,
    RecordShape('f"\\\x1f', ("ü\n",), "\x7f\u2028", "names"),
    replace(NAMES_ONLY, keep="last"),
    replace(NAMES_ONLY, group_fields=("account_id", "post")),
]
CHARACTERS = 'ab0 "\\/\n\t\x00\x1f\x7fé€\u2028\U0001f600'
NUMBERS = [0, -1, 7, 1_700_000_000_000, 2**53, 2**63 - 1, -(2**63), 2**63, 1.0]
PRODUCERS = [(-1, -1, 0), (7, 3, 2**31 - 1), (2**62, 0, 5)]
TIMESTAMPS = [0, 1_700_000_000_123, 2**62]


def text(random_of: random.Random) -> str:
    return "".join(random_of.choices(CHARACTERS, k=random_of.choice([0, 1, 3, 4, 5, 8, 13, 70])))


def member(random_of: random.Random) -> bytes:
    kind = random_of.random()
    if kind < 0.02:
        return random_of.choice([b"j1", b"j-1.5", b"jtrue", b"s"])
    if kind < 0.0203:
        return random_of.choice([b's\xff"', b"s\xed\xa0\x80"])
    return b"s" + (b"g%d" % random_of.randrange(50) if kind < 0.7 else text(random_of).encode())


def sealed_group(random_of: random.Random, shape: RecordShape, sets: Sequence[dict[str, bytes]]) -> SealedGroup:
    def number(low: int) -> Any:
        return random_of.choice(NUMBERS) if random_of.random() < 0.02 else random_of.randrange(low, low + 10_000)

    key = b'j["a",1]' if len(shape.group_fields) > 1 else member(random_of)
    names = random_of.choice(sets) if shape.keep == "names" else {"likes": b"1", text(random_of): b"null"}
    reason = random_of.choice(["quiet", "max_hold", "flush"])
    partitions = random_of.choice([1, 8, 8_191])
    return SealedGroup(key, number(0), number(10**6), number(1), number(10**12), number(10**12), reason, 5, partitions, names)


def entries_of(random_of: random.Random, shape: RecordShape) -> list[SealedGroup]:
    usual = [shared_names([text(random_of) for _ in range(random_of.randrange(5))]) for _ in range(4)]
    sets: list[dict[str, bytes]] = [*usual, *usual, dict(usual[0])]
    if random_of.random() < 0.1:
        sets.append(shared_names([f"{number}{'n' * 90_000}" for number in range(random_of.choice([1, 9, 10, 11]))]))
    return [sealed_group(random_of, shape, sets) for _ in range(random_of.choice([0, 1, 5, 300]))]


def packed_by(make: Callable[[], list[tuple[int, Any, list[int]]]], producer: tuple[int, int, int]) -> list[Any] | str:
    """Return partition, positions, number of records and bytes of each batch; the error if there is one."""
    try:
        made = make()
    except (UnicodeDecodeError, ValueError) as error:
        return repr(error)
    for _, builder, _ in made:
        builder._set_producer_state(*producer)
    return [(partition, owned, builder.record_count(), bytes(builder._build())) for partition, builder, owned in made]


def difference(random_of: random.Random, core: NativeCore) -> str | None:
    """Render and pack random sealed groups; return what differs."""
    shape, missing = random_of.choice(SHAPES), random_of.choice([0, 0, 3])
    entries, timestamp_ms = entries_of(random_of, shape), random_of.choice(TIMESTAMPS)
    count, batch_bytes = random_of.choice([1, 3, 50]), random_of.choice([1, 500, 4_000, 262_144])
    renderer, topic = Renderer(shape, "posts", 3, missing), TopicProducer("o", cast("Any", None), lambda *_: None)
    chosen = random_of.random()
    found: Any = None

    def some(records: Sequence[Any]) -> list[int]:
        return [at for at in range(len(records)) if chosen > 0.3 or at % 3]

    class Opened:
        def create_batch(self) -> BatchBuilder:
            return BatchBuilder(batch_bytes, 0)

    def by_python() -> list[tuple[int, Any, list[int]]]:
        rendered = renderer.records(entries)
        records = [OutgoingRecord("o", key, value, [(FOLD_ID, name)], timestamp_ms) for _, name, key, value in rendered]
        batches = topic._batches(cast("AIOKafkaProducer", Opened()), records, count, some(records))
        return [(batch.partition, batch.builder, batch.positions) for batch in batches]

    def by_native() -> list[tuple[int, Any, list[int]]]:
        nonlocal found
        found = renderer.columns(core, entries)
        assert found is not None
        batches = found.batches(count, batch_bytes, timestamp_ms, some(found))
        return [(partition, PackedBatch(batch), owned) for partition, batch, owned in batches]

    producer = random_of.choice(PRODUCERS)
    expected, packed = packed_by(by_python, producer), packed_by(by_native, producer)
    if expected != packed:
        return f"batches of {shape}, {entries}:\n{expected!r}\n{packed!r}"
    if isinstance(packed, str):
        return None
    rendered = list(renderer.records(entries))
    records = [OutgoingRecord("o", key, value, [(FOLD_ID, name)]) for _, name, key, value in rendered]
    if [owner for owner, *_ in rendered] != found.owners() or records != list(RenderedRecords("o", found)):
        return f"records of {shape}, {entries}"
    return None
