"""Replays the dead letters of a read store into that store after a fix.

Nothing is sent through Kafka, because a record in the output topic would also reach the other consumers of the topic. Dead letters
are written as their records would have been, with current values of the value source. If the store has a newer version of a value,
the version guard rejects the older one. So a replay may be repeated and needs no receipts.

A dead letter from before a reset of its fold has a version of an earlier log. If records carry values, the dead letter is skipped.
Otherwise the current value is written with a version below everything that was folded since the reset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streams_app.clock import Clock
from streams_app.health.metrics import Metrics
from streams_app.operations.dead_letter import DeadLetterSelection, ListedDeadLetter
from streams_app.operations.dead_letters import dead_letter_topic
from streams_app.operations.replay import ReplayProgress
from streams_app.read_store.core.store import check_formats
from streams_app.read_store.sync.dead_letters import OutputRecord
from streams_app.read_store.sync.store_sync import StoreSync, parts_of
from streams_app.settings import ReadStoreSettings, Settings


@dataclass(slots=True)
class _DeadLetterRecord:
    """A dead letter with the attributes of an output record."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None


class StoreReplay:
    """Writes the dead letters of one read store into that store; ``on_batch`` is called with :attr:`done` after each batch."""

    def __init__(
        self, settings: Settings, store: ReadStoreSettings, selection: DeadLetterSelection, clock: Clock,
        *, limit: int | None = None, dry_run: bool = False,
    ) -> None:  # fmt: skip
        """At most ``limit`` records are replayed; a ``dry_run`` only counts."""
        self.done = ReplayProgress()
        self.on_batch: Callable[[ReplayProgress], None] = lambda _: None
        self._settings = settings
        self._store = store
        self._selection = selection
        self._limit = limit
        self._dry_run = dry_run
        self._sync = StoreSync(settings, store, Metrics(settings), clock)
        self._taken: set[str] = set()
        self._resets: Mapping[str, int] = {}

    def stop(self) -> None:
        """Make :meth:`run` return after the batch in progress."""
        self.done.is_stopped = True

    async def run(self) -> None:
        """Write the dead letters up to the current end of their topic into the store.

        Raises:
            TryAgainError: Kafka, the store or its source does not answer; :attr:`done` has the progress so far.
        """
        try:
            async with dead_letter_topic(self._settings, self._store.dead_letters) as topic:
                self.done.is_begun, self.done.offsets = True, topic.offsets
                check_formats(self._store.name, await self._sync.store.checkpoints())
                self._resets = await self._sync.resets()
                async for batch in topic.batches():
                    self.done.is_limited = self._limit is not None and self.done.replayed >= self._limit
                    if self.done.is_limited or self.done.is_stopped:
                        return
                    await self._replay_batch(batch)
                    self.done.read += len(batch)
                    self.on_batch(self.done)
        finally:
            await self._sync.close()

    async def _replay_batch(self, batch: list[ListedDeadLetter]) -> None:
        chosen: dict[tuple[str, bool], list[OutputRecord]] = defaultdict(list)
        for dead_letter in batch:
            if self._takes(dead_letter):
                record = _DeadLetterRecord(
                    dead_letter.position[1] if dead_letter.position else -1, None, dead_letter.key, dead_letter.value
                )
                chosen[dead_letter.headers["source-topic"], self._is_before_reset(dead_letter)].append(record)
        for (topic, ignores_versions), records in chosen.items():
            room = len(records) if self._limit is None else self._limit - self.done.replayed
            self.done.unselected += max(0, len(records) - room)
            for part in parts_of(records[:room]):
                rejected = await self._sync.replay_records(topic, part, ignores_versions=ignores_versions, dry_run=self._dry_run)
                self.done.replayed += len(part) - len(rejected)
                self.done.rejected.update(one.reason for one in rejected)

    def _takes(self, dead_letter: ListedDeadLetter) -> bool:
        if not self._selection.concerns(dead_letter):
            return False
        if dead_letter.digest() in self._taken:
            self.done.duplicates += 1
            return False
        if not self._selection.matches(dead_letter):
            self.done.unselected += 1
            return False
        self._taken.add(dead_letter.digest())
        topic = dead_letter.headers.get("source-topic", "")
        if dead_letter.dropped_part:
            self.done.not_replayable[
                f"the {dead_letter.dropped_part} was too large for {self._store.dead_letters} and was not kept"
            ] += 1
        elif not self._sync.knows(topic):
            self.done.not_replayable[f"it is a record of {topic}, which the store does not read now"] += 1
        elif self._sync.carries_values and self._is_before_reset(dead_letter):
            self.done.not_replayable["its fold was reset since, and the value is that of a record from before"] += 1
        else:
            return True
        return False

    def _is_before_reset(self, dead_letter: ListedDeadLetter) -> bool:
        """Return whether a dead letter is older than the last reset of its fold, so that its record may come from another log."""
        failed_at_ms = dead_letter.headers.get("failed-at-ms", "")
        return (int(failed_at_ms) if failed_at_ms.isdecimal() else 0) < self._resets[dead_letter.headers["source-topic"]]
