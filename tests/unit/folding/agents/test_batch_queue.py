"""The ranges of a partition that wait to be folded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams_app.delivery.batch import Batch
from streams_app.folding.agents.processor import BatchQueue
from tests.helpers.delivery.ownership import batch


class Watched(list[Any]):
    """Records that run a function before their count is returned."""

    def __init__(self, records: list[Any], meanwhile: Callable[[], None]) -> None:
        super().__init__(records)
        self._meanwhile = meanwhile

    def __len__(self) -> int:
        self._meanwhile()
        return super().__len__()


def test_batch_queue_counts_correctly_while_another_thread_adds_a_range() -> None:
    waiting = BatchQueue()
    first: Batch = batch(10, 13)
    first.records = Watched(list(first.records), lambda: waiting.add(batch(15, 16)))
    waiting.add(first)
    waiting.add(batch(13, 15))

    assert 5 - 1 == waiting.records_above(fence=10)
