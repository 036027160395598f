"""The member of the consumer group of folds, which reads through Faust's consumer.

This module stands alone, because each implementation of the port has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

import aiokafka
from faust.types import TP as FaustTP

from streams_app.delivery.batch import TP
from streams_app.kafka.consumer import FoldingConsumer
from streams_app.kafka.fetching import seek_and_count
from streams_app.kafka.requests import KafkaRequests

T = TypeVar("T")


class FaustGroupConsumer(KafkaRequests):
    """A :class:`streams_app.delivery.group_consumer.GroupConsumer` on Faust's consumer; calls of aiokafka run in its thread."""

    def __init__(self, consumer: Callable[[], FoldingConsumer], generation: Callable[[], int]) -> None:
        """Take functions, because Faust has no consumer and no generation before it starts."""
        self._consumer = consumer
        self._generation = generation

    @property
    def generation(self) -> int:
        return self._generation()

    @property
    def client(self) -> aiokafka.AIOKafkaConsumer | None:
        return self._consumer().thread.client

    def assignment(self) -> set[TP]:
        return {TP(*tp) for tp in self._consumer().assignment()}

    async def _asked(self, question: Callable[[aiokafka.AIOKafkaConsumer], Coroutine[Any, Any, T]]) -> T:
        return await self._consumer().thread.run(question)

    async def seek(self, tp: TP, offset: int) -> int:
        thread = self._consumer().thread

        async def move(consumer: aiokafka.AIOKafkaConsumer) -> int:
            return seek_and_count(consumer, thread.seek_numbers, tp, offset)

        return await self._asked(move)

    def pause(self, tps: Collection[TP]) -> None:
        self._consumer().pause_partitions(_for_faust(tps))

    def resume(self, tps: Collection[TP]) -> None:
        self._consumer().resume_partitions(_for_faust(tps))


def _for_faust(tps: Collection[TP]) -> set[FaustTP]:
    return {FaustTP(*tp) for tp in tps}
