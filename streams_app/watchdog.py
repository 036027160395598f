"""Ends a worker that has stopped folding without a word.

Faust can stop consuming and go on sending heartbeats (faust-streaming #175, #523, #629): the group believes in a member that
does nothing. So a thread of its own, with a connection of its own, compares the ends of the partitions with where the worker
stands. If a partition has more to read and its position has not moved for a minute, and nothing known explains it (Redis full
or away, the broker not acknowledging), the process says so and ends with exit code 75: a supervisor starts another one, and
nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from faust.types import TP

from streams_app.clock import Clock
from streams_app.errors import TryAgainError
from streams_app.kafka.client import client_options
from streams_app.settings import KafkaSettings

logger = logging.getLogger(__name__)

STUCK_MS: Final = 60_000
LOOK_EVERY_SECONDS: Final = 5.0
CALL_SECONDS: Final = 10.0
UNCLAIMED: Final = -1
"""Position of a partition that the group has assigned and nobody has claimed."""


@dataclass(slots=True)
class Progress:
    """Since when each partition has stood still although there is more to read (pure).

    Attributes:
        stuck_ms: A partition that stands still for so long is stuck.
    """

    stuck_ms: int = STUCK_MS
    _still: dict[TP, tuple[int, int]] = field(default_factory=dict)

    def observe(self, now_ms: int, ends: Mapping[TP, int], positions: Mapping[TP, int]) -> TP | None:
        """Notes one look.

        Args:
            now_ms: Monotonic clock.
            ends: End of each partition as a consumer may read it.
            positions: Next offset to be folded, of the partitions this worker has.

        Returns:
            A partition that is stuck.
        """
        for tp in self._still.keys() - positions.keys():
            del self._still[tp]
        for tp, position in positions.items():
            known, since_ms = self._still.get(tp, (None, now_ms))
            if position != known or position >= ends.get(tp, 0):
                self._still[tp] = position, now_ms
            elif now_ms - since_ms >= self.stuck_ms:
                return tp
        return None

    def forget(self) -> None:
        """Begins anew: something known explains that nothing moves."""
        self._still.clear()


class Watchdog:
    """Watches one worker from a thread of its own."""

    def __init__(
        self,
        kafka: KafkaSettings,
        clock: Clock,
        positions: Callable[[], dict[TP, int]],
        explained: Callable[[], bool],
        stuck_ms: int = STUCK_MS,
    ) -> None:
        """Starts nothing yet.

        Args:
            kafka: How to connect.
            clock: For monotonic time.
            positions: Next offset to be folded; called from the thread, while the main loop may hang.
            explained: Whether a known pause explains that nothing moves.
            stuck_ms: See :class:`Progress`.
        """
        self._kafka = kafka
        self._clock = clock
        self._positions = positions
        self._explained = explained
        self._progress = Progress(stuck_ms)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to watch."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._watch()), name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends; the thread follows by itself."""
        self._stopped.set()

    async def _watch(self) -> None:
        consumer: AIOKafkaConsumer | None = None
        while not await asyncio.to_thread(self._stopped.wait, LOOK_EVERY_SECONDS):
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    consumer = consumer or await self._connect()
                    await self._look(consumer)
            except (KafkaError, OSError, TimeoutError) as error:
                logger.debug("watchdog cannot ask the broker error=%r", error)
                self._progress.forget()
            except Exception:
                # Whatever it is, a watchdog that has died in silence is worse than one that looks again.
                logger.exception("watchdog failed, looking again")
                self._progress.forget()
        if consumer is not None:
            await consumer.stop()

    async def _connect(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(**client_options(self._kafka), client_id="watchdog", isolation_level="read_committed")
        try:
            await consumer.start()
        except BaseException:
            await consumer.stop()
            raise
        return consumer

    async def _look(self, consumer: AIOKafkaConsumer) -> None:
        if self._explained():
            self._progress.forget()
            return
        positions = self._positions()
        found = await consumer.end_offsets([TopicPartition(tp.topic, tp.partition) for tp in positions]) if positions else {}
        ends = {TP(tp.topic, tp.partition): end for tp, end in found.items()}
        stuck = self._progress.observe(self._clock.monotonic_ms(), ends, positions)
        if stuck is not None and not self._stopped.is_set():
            logger.critical(
                "no progress, ending with exit code %d; nothing is lost source=%s-%d position=%d end=%d",
                TryAgainError.exit_code, stuck.topic, stuck.partition, positions[stuck], ends[stuck],
            )  # fmt: skip
            logging.shutdown()
            os._exit(TryAgainError.exit_code)
