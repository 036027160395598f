"""How partitions are let go: the processors of each end, all side by side, and then a last commit says what has become of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import NamedTuple

from streams_app.delivery.batch import TP
from streams_app.delivery.commits import Commits
from streams_app.delivery.partition import Partition

logger = logging.getLogger(__name__)


class Releasing(NamedTuple):
    """A partition whose processors end, and the task in which they do."""

    partition: Partition
    task: asyncio.Task[None]


class PartitionReleases:
    """The partitions that are being let go."""

    def __init__(self, commits: Commits) -> None:
        """Nothing ends."""
        self._commits = commits
        self._endings: dict[TP, Releasing] = {}
        self._releases: set[asyncio.Task[None]] = set()

    @property
    def tps(self) -> list[TP]:
        """Partitions whose processors have not ended yet."""
        return list(self._endings)

    def of(self, tp: TP) -> asyncio.Task[None] | None:
        """The task in which the processors of a partition end; None: they have ended, or were not let go."""
        ending = self._endings.get(tp)
        return None if ending is None else ending.task

    def begin(self, partition: Partition, seconds: float, *, is_last: bool = False) -> None:
        """Ends the processors of a partition, which may take ``seconds``; what they say of anything but that is ignored at once.

        Args:
            partition: Claimed until now.
            seconds: What what runs may take.
            is_last: Whether it may be another process that claims the partition next: then :meth:`release` follows.
        """
        partition.is_over = True
        tp = partition.tp
        task = asyncio.create_task(self._end(partition, seconds, is_last=is_last), name=f"end {tp}")
        self._endings[tp] = Releasing(partition, task)
        task.add_done_callback(lambda ended: self._endings.pop(tp) if self.of(tp) is ended else None)

    async def _end(self, partition: Partition, seconds: float, *, is_last: bool) -> None:
        await partition.end(seconds)
        if seconds and not is_last:
            # What has ended meanwhile is not to be found as begun by the claim that follows.
            await self._commits.commit_last([partition])

    def shorten_deadline(self, tp: TP, seconds: float) -> None:
        """The processors of a partition that are ending may take no more than ``seconds`` from now on."""
        if (ending := self._endings.get(tp)) is not None:
            ending.partition.shorten_deadline(seconds)

    async def release(self, tps: Collection[TP], held: Collection[Partition], seconds: float) -> None:
        """Returns when all that is being let go has ended and was committed, or after ``seconds``.

        Whoever asks last, such as the end of a worker amidst a rebalance, waits for what was asked before, too: after that there is
        no member any more in whose name it could be committed. What nobody waits for any more goes on.

        Args:
            tps: Partitions that end.
            held: Those of them whose last commit is to be made here.
            seconds: So long it may take.
        """
        endings = {task for tp in tps if (task := self.of(tp)) is not None}
        if endings:
            release = asyncio.create_task(self._release(endings, held, seconds), name="release")
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)
        if self._releases:
            done, _ = await asyncio.wait(self._releases, timeout=seconds)
            for one in done:
                one.result()

    async def _release(self, endings: Collection[asyncio.Task[None]], held: Collection[Partition], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait(endings)
                await self._commits.commit_last(held)
        except TimeoutError:
            logger.info("commit on revocation not answered in time; the next owner reads a little again")
