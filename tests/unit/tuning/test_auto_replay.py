"""A replay of a quiet period that sets itself gives as many records as the test kit."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from streams_app.fold import Fold
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import DetailedEvent
from streams_app.testing import FoldTester
from streams_app.testing.folds import START_MS
from streams_app.tuning.candidates import columns_for
from streams_app.tuning.replay import curve_of

NOW_MS = START_MS + 10**10
RULE = {"auto": "knee", "at_least": "2s", "default": "10m", "at_most": "1h"}


def fold(**options: Any) -> Fold:
    return Fold(
        **({"name": "f", "source": "s", "group_key": "g", "changed": "m", "quiet_period": RULE, "backlog": "sessions"} | options)
    )


def stream(minutes: int) -> list[tuple[int, str]]:
    """Return times and groups: bursts that become longer in the middle, of groups that mostly do not come back."""
    random, events = Random(7), []
    for minute in range(minutes):
        spread = 40 if minute > minutes // 2 else 5
        for number in range(30):
            at_ms = START_MS + minute * 60_000 + round(random.random() * spread * 1_000)
            events.append((at_ms, f"{minute * (number % 3 > 0)} {number % 10}"))
    return sorted(events)


@pytest.mark.parametrize(
    "options",
    [{}, {"max_events": 2}, {"max_hold": "1h"}, {"leading": True}, {"quiet_period": RULE | {"auto": {"target_ratio": 0.6}}}],
    ids=["knee", "max_events", "max_hold", "leading", "target_ratio"],
)
def test_replay_of_a_quiet_period_that_sets_itself_gives_the_records_of_folding(options: dict[str, Any]) -> None:
    declared, history = fold(**options), stream(minutes=60)
    kit = FoldTester(declared, start_ms=START_MS + 3_600_000)
    kit.catch_up([(at_ms, {"g": group, "m": "x"}) for at_ms, group in history])
    kit.advance("2d")
    columns = columns_for(declared, NOW_MS, capacity=10_000)
    columns.add(3, [DetailedEvent(at, at_ms, b"s" + group.encode(), {"x": None}) for at, (at_ms, group) in enumerate(history)])
    auto = curve_of("f", columns, Bounds.of(declared), [2_000, 3_600_000]).auto

    assert auto is not None
    assert len(kit.records) == auto.point.records
    assert auto.changes > 1
    assert {3} == auto.last_ms.keys()


def test_partitions_have_quiet_periods_of_their_own_that_do_not_depend_on_the_sample_of_groups() -> None:
    declared, history = fold(), stream(minutes=60)
    events = [DetailedEvent(at, at_ms, b"s" + group.encode(), {"x": None}) for at, (at_ms, group) in enumerate(history)]
    found = []
    for capacity in (10_000, 1_500):
        columns = columns_for(declared, NOW_MS, capacity)
        columns.add(0, events)
        columns.add(1, events[:300])
        found.append(curve_of("f", columns, Bounds.of(declared), [60_000]))
    (whole, part) = found

    assert whole.auto is not None
    assert part.auto is not None
    assert part.sample is not None
    assert (whole.auto.changes, whole.auto.last_ms) == (part.auto.changes, part.auto.last_ms)
    assert 600_000 == whole.auto.last_ms[1] > whole.auto.last_ms[0]
