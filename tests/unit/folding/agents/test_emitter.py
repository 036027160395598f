"""When emission runs next, and what it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.producer import Outcomes, OutgoingRecord
from streams_app.fold import Fold
from streams_app.folding.agents.emitter import FETCH_DELAY_MS, EmissionPass, Emitter
from streams_app.folding.core.names import shared_names
from streams_app.folding.core.record import RecordShape, SealedGroup
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.replies import SealedGroups
from streams_app.health.metrics import Metrics
from streams_app.kafka.rendered_records import RenderedRecords
from streams_app.native import NativeCore
from streams_app.settings import Settings
from tests.helpers.folding.native import required_core
from tests.helpers.manual_clock import ManualClock
from tests.helpers.waiting import turns_of_loop

FOLD = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(seconds=10), max_hold=timedelta(seconds=60))
NOW_MS = 50_000
NOTHING, SOMETHING = EmissionPass(), EmissionPass(sealed=1)
DUE = SealedGroups(0, False, 3, 0, oldest_score_ms=NOW_MS - 10_000 - FETCH_DELAY_MS, oldest_opened_ms=NOW_MS, sealed=[])


def emitter_after(last_seal: SealedGroups | None) -> Emitter:
    shard = Shard(FOLD, TP("t", 0), cast("Any", None))
    shard.last_seal = last_seal
    metrics = Metrics(Settings(app_id="a", folds=(FOLD,)))
    nothing = cast("Any", None)
    return Emitter(shard, nothing, nothing, TrustedClock(ManualClock(NOW_MS)), metrics)


async def waits_for_the_tick(emitter: Emitter, last: EmissionPass) -> bool:
    """Return whether the next turn waits for the tick; a turn follows sooner or later."""
    turn = asyncio.create_task(emitter.wait_for_next_pass(last))
    await turns_of_loop(5)  # in which an emission that need not wait ends
    is_waiting = not turn.done()
    if is_waiting:
        emitter.ticked.set()
    await turn
    return is_waiting


async def test_groups_due_after_silence_do_not_wait_for_the_tick() -> None:
    emitter = emitter_after(DUE)

    assert [False, True, False] == [await waits_for_the_tick(emitter, NOTHING) for _ in range(3)]


@pytest.mark.parametrize(
    ("last_seal", "last"),
    [
        (DUE, SOMETHING),
        (None, NOTHING),
        (SealedGroups(0, False, 0, 0, None, None, []), NOTHING),
        (SealedGroups(0, False, 3, 0, oldest_score_ms=NOW_MS, oldest_opened_ms=NOW_MS, sealed=[]), NOTHING),
        (SealedGroups(0, False, 3, 0, oldest_score_ms=0, oldest_opened_ms=0, sealed=[]), NOTHING),
    ],
    ids=["under load", "nothing is known", "nothing is open", "nothing is due yet", "a backlog"],
)
async def test_emission_waits_for_the_tick_if_nothing_is_due(last_seal: SealedGroups | None, last: EmissionPass) -> None:
    assert await waits_for_the_tick(emitter_after(last_seal), last)


async def test_group_past_max_hold_is_due_too() -> None:
    seal_result = SealedGroups(0, False, 3, 0, oldest_score_ms=NOW_MS, oldest_opened_ms=NOW_MS - 60_000 - FETCH_DELAY_MS, sealed=[])

    assert not await waits_for_the_tick(emitter_after(seal_result), NOTHING)


async def test_tick_during_a_pass_begins_the_next_pass_at_once() -> None:
    emitter = emitter_after(DUE)
    emitter.ticked.set()

    assert [False, True] == [await waits_for_the_tick(emitter, SOMETHING) for _ in range(2)]


def test_records_and_events_are_counted_by_reason() -> None:
    emitter = emitter_after(None)
    entries = [
        SealedGroup(b"sa", 1, 2, events, 0, 0, reason, 0, 1, {}) for reason, events in (("quiet", 3), ("flush", 5), ("quiet", 7))
    ]
    emitter._count(entries)
    (family,) = emitter.metrics.records_emitted.collect()
    ratio = emitter.metrics.folding_ratio.labels(fold="f")._value.get()
    counted = {each.labels["reason"]: each.value for each in family.samples if each.name.endswith("_total")}

    assert {"quiet": 2, "flush": 1} == counted
    assert pytest.approx(1 - 3 / 15) == ratio


class Sent:
    """Producer that acknowledges all records, and stores them."""

    def __init__(self) -> None:
        self.calls: list[Sequence[OutgoingRecord]] = []

    async def send(self, records: Sequence[OutgoingRecord]) -> Outcomes:
        self.calls.append(records)
        return [None] * len(records)


async def test_records_are_rendered_by_python_after_a_panic(caplog: pytest.LogCaptureFixture) -> None:
    def panic(*_: Any) -> Any:
        raise RuntimeError("the native core panicked")

    emitter, sent = emitter_after(None), Sent()
    emitter.producer = sent
    emitter.shard.definition.stored = RecordShape.of(FOLD)
    entries = [SealedGroup(b"sa", at, at, 1, 0, 0, "quiet", 0, 1, shared_names(["likes"])) for at in range(3)]
    for core in (required_core(), cast("NativeCore", SimpleNamespace(FoldedRecords=panic)), None):
        emitter.core = core

        assert (entries, None) == await emitter._produce(entries)
    assert emitter.core is None
    assert [list(sent.calls[0])] * 3 == [list(records) for records in sent.calls]
    assert [RenderedRecords, list, list] == [type(records) for records in sent.calls]
    assert ["native core failed, records are rendered by Python from now on fold=f"] == [
        line.getMessage() for line in caplog.records
    ]
