"""Faust's consumer as a member of its group, for the folds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

import aiokafka
from faust.types import TP as FaustTP

from streams_app.delivery.batch import TP
from streams_app.kafka.consumer import FoldingConsumer
from streams_app.kafka.fetching import moved
from streams_app.kafka.queries import KafkaQueries

T = TypeVar("T")


class FaustGroupConsumer(KafkaQueries):
    """Faust's consumer as a :class:`streams_app.delivery.group_consumer.GroupConsumer`; aiokafka is touched in its thread only."""

    def __init__(self, consumer: Callable[[], FoldingConsumer], generation: Callable[[], int]) -> None:
        """Take functions, because Faust creates its consumer at its start and knows the generation only then."""
        self._consumer = consumer
        self._generation = generation

    @property
    def generation(self) -> int:
        """Generation of the last assignment, as Faust knows it."""
        return self._generation()

    @property
    def client(self) -> aiokafka.AIOKafkaConsumer | None:
        """The aiokafka consumer within Faust's."""
        return self._consumer().thread.client

    def assignment(self) -> set[TP]:
        """Partitions that are assigned to this member, as Faust knows them."""
        return {TP(*tp) for tp in self._consumer().assignment()}

    async def _asked(self, question: Callable[[aiokafka.AIOKafkaConsumer], Coroutine[Any, Any, T]]) -> T:
        return await self._consumer().thread.run(question)

    async def seek(self, tp: TP, offset: int) -> int:
        """Seek a partition. Batches that were fetched before the seek carry another number than the returned one.

        Raises:
            NotOwnerError: The partition is not assigned to this member.
        """
        thread = self._consumer().thread

        async def move(consumer: aiokafka.AIOKafkaConsumer) -> int:
            return moved(consumer, thread.seek_numbers, tp, offset)

        return await self._asked(move)

    def pause(self, tps: Collection[TP]) -> None:
        """Pause partitions."""
        self._consumer().pause_partitions(_for_faust(tps))

    def resume(self, tps: Collection[TP]) -> None:
        """Resume partitions at once."""
        self._consumer().resume_partitions(_for_faust(tps))


def _for_faust(tps: Collection[TP]) -> set[FaustTP]:
    """Convert partitions to Faust's own type, which it requires."""
    return {FaustTP(*tp) for tp in tps}
