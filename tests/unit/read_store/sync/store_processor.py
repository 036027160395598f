"""The processor of a read store with its own SQLite file, and its partition and batches."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claim import Claim, LogBounds
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.fingerprints import Fingerprint
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.read_store.sync.processor import StoreProcessor, StoreProcessors
from streams_app.read_store.sync.store_sync import StoreSync
from streams_app.settings import Settings
from tests.helpers.kafka.records import Raw
from tests.helpers.manual_clock import ManualClock
from tests.helpers.waiting import wait_until

P0, P1 = TP("s.f", 0), TP("s.f", 1)

LIMIT_SECONDS = 60


@dataclass(frozen=True, slots=True, eq=False)
class RecordingClaim(Claim):
    """A claim that records the calls of the processor."""

    common: int | None
    commits: list[OffsetAndMetadata] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    rejections: list[str] = field(default_factory=list)

    def resync(self, cause: str, why: str = "", script: str = "") -> None:
        self.rejections.append(f"{cause}: {why}")

    def fatal(self, error: BaseException) -> None:
        self.errors.append(error)

    def on_progress(self) -> None:
        return

    async def commit_now(self, position: OffsetAndMetadata) -> None:
        self.commits.append(position)

    async def common_end(self, read: Sequence[Fingerprint]) -> int | None:
        return self.common

    def went_back(self, offset: int, read_to: int) -> None:
        return

    async def offsets_in_other_partitions(self) -> Mapping[int, OffsetAndMetadata | None]:
        return {}

    async def log_bounds_now(self) -> LogBounds:
        raise AssertionError("nobody asks")

    async def broker_keeps_metadata(self) -> bool:
        raise AssertionError("nobody asks")

    async def offset_at(self, time_ms: int) -> int:
        raise AssertionError("nobody asks")

    def reader_view(self) -> ReaderView:
        raise AssertionError("nobody asks")


def claim_of(
    tp: TP = P0, *, position: OffsetAndMetadata | None = None, begin: int = 0, end: int = 10**6, topic_id: str = "",
    was_reset: bool = False, common: int | None = None,
) -> RecordingClaim:  # fmt: skip
    return RecordingClaim(tp, "sqlite", 1, "m", position, LogBounds(begin, end, 0), 2, topic_id, was_reset, common)


def folded(offset: int, tp: TP = P0) -> Raw:
    value = {"id": f"g{tp.partition}", "m": {f"n{offset}": offset}, "fold": {"name": "f", "version": offset}}
    return Raw(offset, key=b"g%d" % tp.partition, value=json.dumps(value).encode())


def batch_of(offsets: range, end: int | None = None, tp: TP = P0) -> Batch:
    """Return records at these offsets in a range that may end after them."""
    until = offsets.stop if end is None else end
    records = [folded(offset, tp) for offset in offsets]
    return Batch(tp, records, offsets.start, until, stable_offset=until, fetched_at_ms=0, seek_number=0)


class Store:
    """A store with its own file, its processors, and its reports."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "read.db"
        self.reported: list[bool] = []
        settings = Settings.model_validate({
            "app_id": "t",
            "folds": [{"name": "f", "source": "s", "group_key": "id", "changed": "m", "keep": "last", "quiet_period": "1s"}],
            "read_stores": [
                {"name": "dashboard", "url": f"sqlite:///{self.path}", "table": "cells", "folds": ["f"], "source": "carried"}
            ],
        })  # fmt: skip
        self.metrics = Metrics(settings)
        self.sync = StoreSync(settings, settings.read_store(None), self.metrics, ManualClock(50))
        self.processors = StoreProcessors(self.sync, OutageReporter("read store sync", self.reported.append))
        self.made: list[StoreProcessor] = []

    def processor(self, tp: TP = P0) -> StoreProcessor:
        (made,) = self.processors.of(tp, ()).values()
        self.made.append(made)
        return made

    def known_loss(self) -> float | None:
        """Return the records that were reported as removed by retention before they were synced."""
        name = "streams_app_read_store_known_loss_records_total"
        return self.metrics.registry.get_sample_value(name, {"store": "dashboard"})

    def names(self) -> set[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM cells")}

    async def checkpoint(self, tp: TP = P0) -> int | None:
        return (await self.sync.store.checkpoints()).get(tp)

    async def reaches(self, processor: StoreProcessor, offset: int) -> None:
        async def is_there() -> bool:
            position = await processor.position_to_commit()
            return position is not None and position.offset == offset

        await wait_until(is_there, LIMIT_SECONDS, f"the mark is {offset}")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Store]:
    """Yield a store with its tables, and close it at the end."""
    opened = Store(folder)
    await opened.sync.store.initialise()
    yield opened
    for processor in opened.made:
        await processor.revoke(0)
    await opened.sync.close()
