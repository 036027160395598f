"""Release of partitions: their processors end concurrently, then a last commit follows. ``ownership.py`` sets the time limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import NamedTuple

from streams_app.delivery.batch import TP
from streams_app.delivery.commits import Commits
from streams_app.delivery.partition import Partition

logger = logging.getLogger(__name__)


class PartitionRelease(NamedTuple):
    """A partition that is being released, and the task that ends its processors."""

    partition: Partition
    task: asyncio.Task[None]


class PartitionReleases:
    """Ends the processors of released partitions, and commits their last offsets."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._releasing: dict[TP, PartitionRelease] = {}
        self._releases: set[asyncio.Task[None]] = set()

    @property
    def tps(self) -> list[TP]:
        return list(self._releasing)

    def of(self, tp: TP) -> asyncio.Task[None] | None:
        """Return the task that ends the processors of a partition; None if they have ended or are not being released."""
        release = self._releasing.get(tp)
        return None if release is None else release.task

    def begin(self, partition: Partition, seconds: float, *, is_handed_over: bool = False) -> None:
        """Start ending the processors of a partition. From now on, their reports are ignored, except commits and fatal errors.

        Args:
            is_handed_over: Whether another process may claim the partition next. If True, the caller must call :meth:`release`,
                which makes the last commit. If False, the last commit follows as soon as the processors have ended; no commit is
                made if ``seconds`` is 0.
        """
        partition.is_over = True
        tp = partition.tp
        task = asyncio.create_task(self._end(partition, seconds, is_handed_over=is_handed_over), name=f"end {tp}")
        self._releasing[tp] = PartitionRelease(partition, task)
        task.add_done_callback(lambda ended: self._releasing.pop(tp) if self.of(tp) is ended else None)

    async def _end(self, partition: Partition, seconds: float, *, is_handed_over: bool) -> None:
        await partition.end(seconds)
        if seconds and not is_handed_over:
            # Without this commit, the next claim would read metadata in which finished work is still recorded as started.
            await self._commits.commit_last([partition])

    def shorten_deadline(self, tp: TP, seconds: float) -> None:
        if (release := self._releasing.get(tp)) is not None:
            release.partition.shorten_deadline(seconds)

    async def release(self, tps: Collection[TP], claimed: Collection[Partition], seconds: float) -> None:
        """Wait until the processors of partitions have ended and the last commit is made, for at most ``seconds``.

        ``claimed`` are those whose last commit this call makes.

        Also waits for releases that began earlier: shutdown may arrive during a rebalance, and afterwards this member can no longer
        commit. After the timeout, processors continue to end in the background, but this call makes no last commit.
        """
        releasing = {task for tp in tps if (task := self.of(tp)) is not None}
        if releasing:
            release = asyncio.create_task(self._release(releasing, claimed, seconds), name="release")
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)
        if self._releases:
            done, _ = await asyncio.wait(self._releases, timeout=seconds)
            for one in done:
                one.result()

    async def _release(self, releasing: Collection[asyncio.Task[None]], claimed: Collection[Partition], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait(releasing)
                await self._commits.commit_last(claimed)
        except TimeoutError:
            logger.info("commit on revocation not answered in time; the next owner reads a little again")
