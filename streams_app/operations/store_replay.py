"""Dead letters of a read store, written into that store after a fix.

Nothing goes through Kafka: a record that was put back into the output topic would reach every other consumer of it. The letters are
read again and written as their records would have been, with the values that the source has now; the version guard lets nothing
through that the store knows better. So nothing has to be remembered: what the store has by now is found unchanged the next time.

A letter from before a reset of its fold has a version of a log that may be another one now. Where values are carried, it is left;
where a source is asked, its value is written under a version below every one that is folded since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streams_app.clock import Clock
from streams_app.health.metrics import Metrics
from streams_app.operations.dead_letter import ListedDeadLetter, Selection
from streams_app.operations.dead_letters import dead_letter_topic
from streams_app.operations.replay import ReplayProgress
from streams_app.read_store.agents.letters import OutputRecord
from streams_app.read_store.agents.sync import Sync, steps
from streams_app.settings import ReadStoreSettings, Settings


@dataclass(slots=True)
class _Record:
    """The record of a letter, as the store reads records."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None


class StoreReplay:
    """One replay of the dead letters of a read store.

    Attributes:
        done: What it has done so far.
        on_page: Called with :attr:`done` after each page.
    """

    def __init__(
        self, settings: Settings, store: ReadStoreSettings, selection: Selection, clock: Clock,
        *, limit: int | None = None, dry_run: bool = False,
    ) -> None:  # fmt: skip
        """Nothing is read yet.

        Args:
            settings: Settings of the application.
            store: The store that refused the records.
            selection: Letters that are wanted.
            clock: For the column ``updated_ms``.
            limit: Number of records put back at most; None: no limit.
            dry_run: Whether letters are only counted.

        Raises:
            ConfigurationError: The store or its source cannot be used.
        """
        self.done = ReplayProgress()
        self.on_page: Callable[[ReplayProgress], None] = lambda _: None
        self._settings = settings
        self._store = store
        self._selection = selection
        self._limit = limit
        self._dry_run = dry_run
        self._sync = Sync(settings, store, Metrics(settings), clock)
        self._taken: set[str] = set()
        self._resets: Mapping[str, int] = {}

    def stop(self) -> None:
        """Ends it after the page under way."""
        self.done.is_stopped = True

    async def run(self) -> None:
        """Writes what the letters hold up to the end the topic has now.

        Raises:
            TryAgainError: Kafka, the store or its source does not answer; :attr:`done` says how far it came.
            ConfigurationError: The dead-letter topic does not exist.
        """
        try:
            async with dead_letter_topic(self._settings, self._store.dead_letters) as topic:
                self.done.is_begun, self.done.offsets = True, topic.offsets
                self._resets = await self._sync.resets()
                async for page in topic.pages():
                    self.done.is_limited = self._limit is not None and self.done.replayed >= self._limit
                    if self.done.is_limited or self.done.is_stopped:
                        return
                    await self._replay_page(page)
                    self.done.read += len(page)
                    self.on_page(self.done)
        finally:
            await self._sync.close()

    async def _replay_page(self, page: list[ListedDeadLetter]) -> None:
        chosen: dict[tuple[str, bool], list[OutputRecord]] = defaultdict(list)
        for dead_letter in page:
            if self._takes(dead_letter):
                record = _Record(dead_letter.position[1] if dead_letter.position else -1, None, dead_letter.key, dead_letter.value)
                chosen[dead_letter.headers["source-topic"], self._is_former(dead_letter)].append(record)
        for (topic, is_former), records in chosen.items():
            room = len(records) if self._limit is None else self._limit - self.done.replayed
            self.done.unselected += max(0, len(records) - room)
            for step in steps(records[:room]):
                refused = await self._sync.put_back(topic, step, is_former=is_former, dry_run=self._dry_run)
                self.done.replayed += len(step) - len(refused)
                self.done.rejected.update(one.reason for one in refused)

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
        elif self._sync.carries_values and self._is_former(dead_letter):
            self.done.not_replayable["its fold was reset since, and the value is that of a record from before"] += 1
        else:
            return True
        return False

    def _is_former(self, dead_letter: ListedDeadLetter) -> bool:
        """Whether the record of a letter was folded before the last reset of its fold: it may be of another log."""
        failed_at_ms = dead_letter.headers.get("failed-at-ms", "")
        return (int(failed_at_ms) if failed_at_ms.isdecimal() else 0) < self._resets[dead_letter.headers["source-topic"]]
