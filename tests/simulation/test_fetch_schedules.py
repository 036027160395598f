"""Ranges from fetch replies are contiguous for any contents, with any seeks and pauses in between.

Replies consist of real record batches with gaps and control batches; a schedule is determined by its seed.
"""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import CorruptRecordException
from aiokafka.structs import TopicPartition

from streams_app.delivery.batch import TP, Batch
from streams_app.kafka import fetching
from streams_app.kafka.patches.record_batches import RecordBatches
from tests.helpers.kafka.records import batch, marker
from tests.simulation.mutants import Change, Mutant

SCHEDULES = 80
STEPS = 60
PARTITION = TopicPartition("t", 0)
TP0 = TP("t", 0)
PRODUCER = 7


class Reader:
    """The fetching of the product with the real state of a subscription, and a broker that answers from a log of batches."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.events: list[int] = []
        self.parts: list[tuple[int, int, bytes]] = []
        self.aborted: list[tuple[int, int, int]] = []
        self.end = 0
        self.subscriptions = SubscriptionState(loop=asyncio.get_running_loop())
        self.subscriptions.assign_from_user({PARTITION})
        self.state.reset_to(0)
        self.fetcher = SimpleNamespace(
            _records={},
            _subscriptions=self.subscriptions,
            _wait_consume_future=None,
            _notify=lambda _: None,
            _client=SimpleNamespace(_conns={}, cluster=SimpleNamespace(leader_for_partition=lambda tp: 0)),
        )
        self.seek_numbers = {TP0: 0}

    @property
    def state(self) -> Any:
        """Return the state of the partition in aiokafka."""
        return self.subscriptions.subscription.assignment.state_value(PARTITION)

    def append(self) -> None:
        """Append events with gaps, some of them in a transaction with its marker."""
        rng = self.rng
        base = self.end + rng.choice([0, 0, 0, 2])
        count, is_transactional = rng.randint(1, 5), rng.random() < 0.4
        relative = sorted(rng.sample(range(count + 2), count))
        producer = PRODUCER if is_transactional else -1
        self.parts.append(
            (base, base + relative[-1] + 1, batch(base, relative, producer=producer, is_transactional=is_transactional))
        )
        self.end = base + relative[-1] + 1
        is_aborted = is_transactional and rng.random() < 0.5
        if is_aborted:
            self.aborted.append((PRODUCER, base, self.end))
        else:
            self.events += [base + at for at in relative]
        if is_transactional:
            self.parts.append((self.end, self.end + 1, marker(self.end, PRODUCER, is_abort=is_aborted)))
            self.end += 1

    def reply(self) -> None:
        """Return a fetch reply from the position on; sometimes its last batch is corrupt."""
        if PARTITION in self.fetcher._records or not self.state.has_valid_position:
            return
        position = self.state.position
        parts = [(base, data) for base, end, data in self.parts if end > position][: self.rng.randint(1, 4)]
        if not parts:
            return
        data = bytearray(b"".join(data for _, data in parts))
        if self.rng.random() < 0.1:
            data[-1] ^= 1
        last = parts[-1][0]
        aborted = [(producer, first) for producer, first, ended in self.aborted if first <= last and ended >= position]
        records = PartitionRecords(PARTITION, RecordBatches(bytes(data)), aborted, position, None, None, True, READ_COMMITTED)
        assignment = self.subscriptions.subscription.assignment
        self.fetcher._records[PARTITION] = FetchResult(PARTITION, assignment=assignment, partition_records=records, backoff=0)

    def take(self) -> Batch | None:
        """Return fetched records; repeat the fetch of a corrupt reply."""
        try:
            return fetching.take_fetched(self.fetcher, {TP0}, self.seek_numbers, 100, self.rng.choice([1, 3, 100])).get(TP0)
        except CorruptRecordException:
            self.fetcher._records.pop(PARTITION, None)
            return None

    def pause(self, *, is_wanted: bool) -> None:
        """Pause or resume."""
        (self.subscriptions.pause if is_wanted else self.subscriptions.resume)(PARTITION)

    def seek(self) -> int:
        """Seek as :func:`streams_app.kafka.fetching.seek_and_count` does."""
        to = self.rng.randint(0, self.end)
        self.subscriptions.seek(PARTITION, to)
        self.seek_numbers[TP0] += 1
        return to


def faults_in(found: Batch, reader: Reader, position: int) -> list[str]:
    """Return the violations of one range, which must begin at a position."""
    faults = []
    offsets = [record.offset for record in found.records]
    expected = [offset for offset in reader.events if found.begin <= offset < found.end]
    if found.begin != position or found.end <= found.begin:
        faults.append(f"[{found.begin}, {found.end}) after {position}")
    if offsets != expected:
        faults.append(f"[{found.begin}, {found.end}) has {offsets}, the log {expected}")
    if any(tuple(record.headers) != (("h", b"x"),) for record in found.records):
        faults.append(f"[{found.begin}, {found.end}) has headers that were not written")
    if found.seek_number != reader.seek_numbers[TP0]:
        faults.append(f"seek number {found.seek_number}")
    return faults


async def faults_of(seed: int) -> list[str]:
    """Return the violations of one schedule; its last part has no appends, seeks or pauses."""
    reader = Reader(random.Random(seed))
    rng, position, faults = reader.rng, 0, list[str]()
    for step in range(10 * STEPS):
        is_healing = step >= STEPS
        if not is_healing:
            reader.append()
            position = reader.seek() if rng.random() < 0.1 else position
            reader.pause(is_wanted=rng.random() < 0.3)
        else:
            reader.pause(is_wanted=False)
        reader.reply()
        if not is_healing and rng.random() < 0.1:
            position = reader.seek()
        found = reader.take()
        if found is not None:
            faults += faults_in(found, reader, position)
            position = found.end
    return faults if position == reader.end else [*faults, f"ends at {position}, the log at {reader.end}"]


async def test_ranges_are_contiguous_for_any_replies_and_any_interruptions() -> None:
    for seed in range(SCHEDULES):
        assert await faults_of(seed) == [], f"seed {seed}"


TAKE, OPEN = "kafka.patches.records:FetchedRecords.take", "kafka.patches.records:FetchedRecords._open"
BROKEN = (
    Mutant(
        "a fetched range begins at its first record",
        "",
        (),
        (
            Change(
                "kafka.fetching:take_fetched",
                "if begin is None or not state.has_valid_position or state.position <= begin:",
                "begin = records[0].offset if records else begin\nif begin is None or state.position <= begin:",
            ),
        ),
    ),
    Mutant(
        "records before the position are delivered",
        "",
        (),
        (Change(TAKE, "if found and found[0].offset < self.next_fetch_offset:", "if False:"),),
    ),
    Mutant(
        "checksums are not verified",
        "",
        (),
        (Change(OPEN, "self._is_corrupt = fetched._check_crcs and not fetched._records.is_intact()", "pass"),),
    ),
    Mutant("control batches are delivered as events", "", (), (Change(OPEN, "if self._is_skipped(batch):", "if False:"),)),
    Mutant(
        "a producer that aborted once counts as aborted forever",
        "",
        (),
        (
            Change(
                "kafka.patches.records:FetchedRecords._is_skipped", "fetched._aborted_producers.discard(batch.producer_id)", "pass"
            ),
        ),
    ),
)


@pytest.mark.parametrize("mutant", BROKEN, ids=lambda mutant: mutant.name)
async def test_broken_reader_is_caught(mutant: Mutant) -> None:
    caught = False
    with mutant.applied():
        for seed in range(SCHEDULES):
            caught = caught or bool(await faults_of(seed))

    assert caught
