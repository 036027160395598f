"""When a shard folds in short chunks: a backlog is read in long ones, what comes live is not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from streams_app.delivery.partition_clock import FRESH_MS, ReaderView
from streams_app.fold import Fold
from streams_app.folding.core.chunks import LIVE_COST, UPDATE_COST, FoldEvent
from streams_app.folding.shard.shard import Shard


@pytest.mark.parametrize("backlog", ["merge", "sessions"])
@pytest.mark.parametrize(
    ("fetched_ms", "now_ms", "caught_up_at_ms", "chunks"),
    [
        pytest.param(FRESH_MS, FRESH_MS, 0, 2, id="at the end just before"),
        pytest.param(FRESH_MS, 2 * FRESH_MS, 0, 2, id="and fetched not long ago"),
        pytest.param(FRESH_MS + 1, FRESH_MS + 1, 0, 1, id="at the end long ago"),
        pytest.param(FRESH_MS, 2 * FRESH_MS + 1, 0, 1, id="fetched long ago"),
        pytest.param(0, 0, None, 1, id="never at the end"),
        pytest.param(FRESH_MS, FRESH_MS, 2 * FRESH_MS, 2, id="at the end, by clocks that differ a little"),
        pytest.param(FRESH_MS, FRESH_MS, 2 * FRESH_MS + 1, 1, id="at the end, by a clock that was ahead then"),
        pytest.param(2 * FRESH_MS, FRESH_MS, FRESH_MS, 2, id="fetched by a clock that differs a little"),
        pytest.param(2 * FRESH_MS + 1, FRESH_MS, 2 * FRESH_MS, 1, id="fetched by a clock that is ahead"),
    ],
)
def test_a_shard_folds_in_short_chunks_what_comes_while_it_is_at_the_end(
    fetched_ms: int, now_ms: int, caught_up_at_ms: int | None, chunks: int, backlog: str
) -> None:
    fold = Fold(name="a", source="t", group_key="g", changed="m", quiet_period=timedelta(hours=1), backlog=backlog)
    shard = Shard(fold, "t", 0, cast("Any", None))
    shard.caught_up_at_ms = caught_up_at_ms
    events = [FoldEvent(number, 0, b"s%d" % number, {}) for number in range(-(-LIVE_COST // UPDATE_COST) + 1)]

    found = shard.chunks(events, len(events) - 1, ReaderView(len(events), fetched_ms), now_ms)

    assert chunks == len(list(found))
