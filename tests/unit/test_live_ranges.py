"""When a range counts as live: the reader had been at the end of its partition just before."""

from __future__ import annotations

import pytest

from streams_app.delivery.partition_clock import FRESH_MS, ReaderView
from streams_app.folding.core.shard_clock import ShardClock


@pytest.mark.parametrize(
    ("fetched_ms", "now_ms", "caught_up_at_ms", "is_live"),
    [
        pytest.param(FRESH_MS, FRESH_MS, 0, True, id="at the end just before"),
        pytest.param(FRESH_MS, 2 * FRESH_MS, 0, True, id="and fetched not long ago"),
        pytest.param(FRESH_MS + 1, FRESH_MS + 1, 0, False, id="at the end long ago"),
        pytest.param(FRESH_MS, 2 * FRESH_MS + 1, 0, False, id="fetched long ago"),
        pytest.param(0, 0, None, False, id="never at the end"),
        pytest.param(FRESH_MS, FRESH_MS, 2 * FRESH_MS, True, id="at the end, by clocks that differ a little"),
        pytest.param(FRESH_MS, FRESH_MS, 2 * FRESH_MS + 1, False, id="at the end, by a clock that was ahead then"),
        pytest.param(2 * FRESH_MS, FRESH_MS, FRESH_MS, True, id="fetched by a clock that differs a little"),
        pytest.param(2 * FRESH_MS + 1, FRESH_MS, 2 * FRESH_MS, False, id="fetched by a clock that is ahead"),
    ],
)
def test_a_range_is_live_that_was_fetched_while_the_reader_was_at_the_end(
    fetched_ms: int, now_ms: int, caught_up_at_ms: int | None, is_live: bool
) -> None:
    clock = ShardClock(backlog="merge", quiet_ms=1_000)
    clock.caught_up_at_ms = caught_up_at_ms

    time = clock.range_time(ReaderView(1, fetched_ms), now_ms)

    assert (min(fetched_ms, now_ms) if is_live else None, now_ms) == (time.arrived_ms, time.cap_ms)
