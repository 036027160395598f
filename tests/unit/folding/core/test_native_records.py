"""Records that the native core renders and packs are those of Python, byte for byte."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
from aiokafka.errors import RecordListTooLargeError
from hypothesis import given
from hypothesis import strategies as st

from streams_app.delivery.producer import Outcomes, OutgoingRecord
from streams_app.folding.core import names, record
from streams_app.folding.core.record import Renderer, SealedGroup
from streams_app.kafka.rendered_records import RenderedRecords
from streams_app.kafka.topic_producer import OpenProducer, ProducerBatch, TopicProducer
from streams_app.native import ColumnRecords
from tests.helpers.folding.native import required_core
from tests.helpers.folding.native_records import NAMES_ONLY, difference

GROUPS = [
    SealedGroup(b"sg%d" % at, at, at + 5, 4, 1_000, 2_000, "quiet", 3_000, 4, names.shared_names(["likes"])) for at in range(20)
]


def rendered(groups: list[SealedGroup]) -> RenderedRecords:
    columns = Renderer(NAMES_ONLY, "posts", 3).columns(required_core(), groups)
    assert columns is not None
    return RenderedRecords("o", columns)


@given(st.integers(0, 2**64))
def test_native_core_renders_and_packs_random_groups_as_python_does(seed: int) -> None:
    assert difference(random.Random(seed), required_core()) is None


def test_usual_groups_are_rendered_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "render", None)

    assert len(GROUPS) == len(rendered(GROUPS))


def test_records_without_room_are_left_to_python() -> None:
    large = names.shared_names([f"{number}{'n' * 400_000}" for number in range(2)])

    assert Renderer(NAMES_ONLY, "posts", 3).columns(required_core(), [GROUPS[0]._replace(names=large)] * 100) is None


def test_index_beyond_the_records_is_an_error() -> None:
    with pytest.raises(IndexError):
        rendered(GROUPS)[len(GROUPS)]
    assert GROUPS[-1].member[1:] == rendered(GROUPS)[-1].key


class Panicking:
    """Columns whose packing panics."""

    def __init__(self, columns: ColumnRecords) -> None:
        self._columns = columns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._columns, name)

    def __len__(self) -> int:
        return len(self._columns)

    def batches(self, *_: Any) -> Any:
        raise RuntimeError("the native core panicked")


class Opened:
    """A producer whose batches list their records."""

    class Builder:
        def __init__(self) -> None:
            self.records: list[Any] = []

        def append(self, **fields: Any) -> Any:
            self.records.append(fields)
            return fields

    def create_batch(self) -> Builder:
        return self.Builder()


def test_records_are_packed_by_python_after_a_panic(caplog: pytest.LogCaptureFixture) -> None:
    topic = TopicProducer("o", cast("Any", None), lambda *_: None)
    packed = rendered(GROUPS)
    expected = topic._batches(cast("Any", Opened()), list(packed), 3, range(len(packed)))
    found = topic._batches(
        cast("Any", Opened()), RenderedRecords("o", cast("Any", Panicking(packed.columns))), 3, range(len(packed))
    )

    assert [(one.partition, one.positions, one.builder.records) for one in expected] == [
        (one.partition, one.positions, one.builder.records) for one in found
    ]
    assert ["native core failed, records are packed by Python topic=o"] == [line.getMessage() for line in caplog.records]


async def test_records_of_a_batch_that_is_too_large_are_sent_alone() -> None:
    sent: list[list[int]] = []

    class Sending(TopicProducer):
        async def _send_all(self, opened: OpenProducer, batches: Any, outcomes: Outcomes) -> None:
            found = cast("list[ProducerBatch]", batches)
            sent.extend(batch.positions for batch in found)
            for batch in found:
                for position in batch.positions:
                    outcomes[position] = RecordListTooLargeError() if len(batch.positions) > 1 else None

    outcomes: Outcomes = [None] * 3
    topic, records = Sending("o", cast("Any", None), lambda *_: None), rendered(GROUPS[:3])
    await topic._send(OpenProducer(cast("Any", None)), records, 1, outcomes)

    assert [[0, 1, 2], [0], [1], [2]] == sent
    assert [None] * 3 == outcomes


def test_record_is_an_object_if_it_is_read_by_itself() -> None:
    first, *rest = rendered(GROUPS)

    assert OutgoingRecord("o", b"g0", first.value, [("fold-id", b"account-metrics:posts:3:0-5")]) == first
    assert len(GROUPS) - 1 == len(rest)
