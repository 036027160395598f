"""When a partition counts as stuck."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, cast

import pytest

from streams_app import Fold
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView, TrustedClock
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.folding.agents.context import FoldContext
from streams_app.folding.agents.processor import explains_emission, explains_folding
from streams_app.folding.agents.processors import FoldProcessors
from streams_app.health.metrics import Metrics
from streams_app.health.progress import UNCLAIMED, Progress, StallDetector
from streams_app.health.status import Status
from streams_app.settings import Settings
from streams_app.worker.watchdog import FoldingState, Watchdog
from tests.helpers.delivery.ownership import Taker, Worker
from tests.helpers.manual_clock import ManualClock


def progress_of(**which: tuple[int, int]) -> dict[Hashable, Progress]:
    """Return the progress of several things, each with its position and end."""
    return {name: Progress(*where, name, "") for name, where in which.items()}


def named(found: Progress | None) -> str | None:
    """Return the name of what was found."""
    return found and found.what


def test_unread_partition_without_progress_for_a_minute_is_stuck() -> None:
    progress = StallDetector(60_000)

    assert progress.observe(0, progress_of(A=(5, 10))) is None
    assert progress.observe(59_999, progress_of(A=(5, 20))) is None
    assert "A" == named(progress.observe(60_000, progress_of(A=(5, 30))))


@pytest.mark.parametrize("end", [5, 4])
def test_partition_read_to_its_end_is_not_stuck(end: int) -> None:
    progress = StallDetector(60_000)

    assert [None] * 3 == [progress.observe(at, progress_of(A=(5, end))) for at in (0, 60_000, 120_000)]


def test_minute_starts_when_there_is_something_to_read() -> None:
    progress = StallDetector(60_000)
    progress.observe(0, progress_of(A=(5, 5)))

    assert progress.observe(100_000, progress_of(A=(5, 5))) is None
    assert progress.observe(110_000, progress_of(A=(5, 6))) is None
    assert progress.observe(159_999, progress_of(A=(5, 6))) is None
    assert "A" == named(progress.observe(160_000, progress_of(A=(5, 6))))


def test_progress_of_one_partition_does_not_excuse_another() -> None:
    progress = StallDetector(60_000)
    stuck = [named(progress.observe(at, progress_of(A=(5, 99), B=(at // 10_000, 99)))) for at in range(0, 70_000, 10_000)]

    assert [None] * 6 + ["A"] == stuck


def test_revoked_or_paused_partition_starts_the_minute_anew() -> None:
    progress = StallDetector(60_000)
    progress.observe(0, progress_of(A=(5, 10)))
    progress.observe(30_000, progress_of())
    assert progress.observe(60_000, progress_of(A=(5, 10))) is None
    assert "A" == named(progress.observe(120_000, progress_of(A=(5, 10))))


@pytest.mark.parametrize("end", [0, 10])
def test_unclaimed_partition_is_stuck_even_if_it_is_empty(end: int) -> None:
    progress = StallDetector(60_000)

    assert progress.observe(0, progress_of(A=(UNCLAIMED, end))) is None
    assert "A" == named(progress.observe(60_000, progress_of(A=(UNCLAIMED, end))))


def test_partition_without_progress_is_reported_after_half_the_time() -> None:
    progress = StallDetector(60_000)
    found = []
    for at_ms in (0, 29_999, 30_000, 45_000):
        progress.observe(at_ms, progress_of(A=(5, 10), B=(5, 5)))
        found.append(named(progress.slow(at_ms)))

    assert [None, None, "A", "A"] == found


# Known pauses


FOLDS = (
    Fold(name="one", source="s", output="one-out", dead_letters="dead", group_key="a", changed="m", quiet_period="1s"),
    Fold(name="two", source="s", output="two-out", dead_letters="dead", group_key="a", changed="m", quiet_period="1s"),
    Fold(name="far", source="t", output="far-out", dead_letters="far-dead", group_key="a", changed="m", quiet_period="1s"),
)


def explained(*about: str) -> tuple[set[str], set[str]]:
    """Return the sources whose folding, and the folds whose emission, is explained by these readiness reasons."""
    status = Status()
    status.clear("start")
    for reason in about:
        status.set_not_ready(reason, "why")
    sources = {source: [fold for fold in FOLDS if fold.source == source] for source in ALL_SOURCES}
    return (
        {source for source, folds in sources.items() if explains_folding(folds, status)},
        {fold.name for fold in FOLDS if explains_emission(fold, status)},
    )


ALL_SOURCES, ALL_FOLDS = {"s", "t"}, {"one", "two", "far"}


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ("nothing that matters", (set(), set())),
        ("kafka-away", (ALL_SOURCES, ALL_FOLDS)),
        ("redis-away", (ALL_SOURCES, ALL_FOLDS)),
        ("redis", (ALL_SOURCES, ALL_FOLDS)),
        ("start", (ALL_SOURCES, ALL_FOLDS)),
        ("claim", (ALL_SOURCES, set())),
        ("redis-memory", (ALL_SOURCES, set())),
        ("clock-skew", (set(), ALL_FOLDS)),
        ("producer", (ALL_SOURCES, ALL_FOLDS)),
        ("producer:one-out", ({"s"}, {"one"})),
        ("producer:dead", ({"s"}, {"one", "two"})),
        ("producer:far-out", ({"t"}, {"far"})),
    ],
)
def test_pause_excuses_only_what_it_stops(about: str, expected: tuple[set[str], set[str]]) -> None:
    assert expected == explained(about)


# Judgement


class Unclaimed:
    """A member whose group has assigned a partition that is not claimed."""

    def assignment(self) -> set[TP]:
        return {TP("s", 0)}

    def reader_view(self, _: TP) -> tuple[ReaderView, int | None]:
        return ReaderView(None, None), None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the reasons for which a process would have been ended."""
    found: list[str] = []
    monkeypatch.setattr(Watchdog, "_end", lambda _, what: found.append(what))
    return found


SETTINGS = Settings(app_id="a", folds=FOLDS)


@pytest.fixture
def watchdog(clock: ManualClock, status: Status, ended: list[str]) -> Watchdog:
    return Watchdog(SETTINGS, clock, Metrics(SETTINGS), status)


@pytest.fixture
def check_for_seconds(clock: ManualClock, status: Status, watchdog: Watchdog) -> Callable[[int, int], Awaitable[None]]:
    """Return a function that runs the watchdog for some seconds at an interval."""
    trusted, nothing = TrustedClock(clock), cast("Any", None)
    context = FoldContext(SETTINGS, nothing, nothing, trusted, Metrics(SETTINGS), status)
    config = OwnershipConfig(trusted, status, nothing, nothing, session_ms=10_000, tick_seconds=1.0)
    ownership = Ownership(cast("Any", Unclaimed()), FoldProcessors(context), config)
    watchdog.watch("folds", ownership, is_essential=True)

    async def check_for(seconds: int, every_ms: int) -> None:
        for _ in range(0, seconds * 1000, every_ms):
            await watchdog._check(FoldingState(ownership, context.claimed_shards))
            clock.advance_ms(every_ms)

    return check_for


CheckFor = Callable[[int, int], Awaitable[None]]


async def test_worker_without_progress_is_not_ready_after_half_a_minute_and_ends_after_one(
    check_for_seconds: CheckFor, status: Status, ended: list[str]
) -> None:
    await check_for_seconds(30, 500)
    assert [] == status.ready_reasons()
    await check_for_seconds(30, 500)
    assert ["s-0 has more to read and stands still"] == status.ready_reasons()
    assert [] == ended
    await check_for_seconds(1, 500)

    assert ["no progress group=folds source=s-0 position=-1 end=0 why='s-0 has more to read and stands still'"] * 2 == ended


async def test_each_added_group_is_watched_with_its_own_reasons(
    check_for_seconds: CheckFor, watchdog: Watchdog, status: Status, ended: list[str]
) -> None:
    other = Worker()
    other.group_consumer.assigned = {TP("t", 0)}
    watchdog.watch("other", other.ownership, is_essential=True)
    await check_for_seconds(59, 500)
    status.set_not_ready("redis-memory", "the folds alone have a reason")
    await check_for_seconds(2, 500)

    assert ["no progress group=other source=t-0"] == sorted({why.partition(" position")[0] for why in ended})


@pytest.mark.parametrize(
    ("is_claimed", "away", "expected"),
    [
        (True, "redis-memory", ["no progress group=ship source=t-0"]),
        (False, "redis-memory", []),
        (True, "kafka-away", []),
    ],
)
async def test_process_ends_for_a_separate_group_only_if_its_partition_is_claimed_and_the_broker_answers(
    check_for_seconds: CheckFor,
    watchdog: Watchdog,
    status: Status,
    ended: list[str],
    is_claimed: bool,
    away: str,
    expected: list[str],
) -> None:
    other = Worker()
    other.group_consumer.assigned, other.group_consumer.stable_offset = {TP("t", 0)}, 90
    if is_claimed:
        other.hold(Taker())
    watchdog.watch("ship", other.ownership)
    await check_for_seconds(59, 500)
    status.set_not_ready(away, "the folds have a reason")
    await check_for_seconds(2, 500)

    assert expected == sorted({why.partition(" position")[0] for why in ended})


async def test_pause_starts_the_minute_anew(check_for_seconds: CheckFor, status: Status, ended: list[str]) -> None:
    await check_for_seconds(59, 500)
    status.set_not_ready("kafka-away", "why")
    await check_for_seconds(300, 500)
    assert ["why"] == status.ready_reasons()
    status.clear("kafka-away")
    await check_for_seconds(60, 500)

    assert [] == ended


async def test_suspended_process_is_not_ended(check_for_seconds: CheckFor, ended: list[str]) -> None:
    await check_for_seconds(59, 500)
    await check_for_seconds(120, 120_000)
    await check_for_seconds(59, 500)

    assert [] == ended


async def test_reader_is_not_checked_before_the_first_assignment(
    check_for_seconds: CheckFor, status: Status, ended: list[str]
) -> None:
    status.set_not_ready("start", "the worker is starting")
    await check_for_seconds(200, 500)

    assert [] == ended
