"""The batch size of a store or source: smaller after a timeout, larger while batches are fast."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.read_store.core.batch_size import BatchSize


def test_batches_are_unlimited_until_one_takes_too_long() -> None:
    size = BatchSize(1_000)

    assert [[*range(9)]] == [list(part) for part in size.parts(range(9))]
    assert not size.finished(9, 999)
    assert size.most is None


def test_batch_is_halved_after_each_timeout_and_reported_once() -> None:
    size = BatchSize(1_000)
    is_first = [size.exceeded(9), size.exceeded(4), size.exceeded(2)]

    assert ([True, False, False], 1) == (is_first, size.most)
    assert not size.exceeded(1)
    assert 1 == size.most


@pytest.mark.parametrize(("cells", "took_ms"), [(3, 10), (4, 500)], ids=["a batch that was not full", "half of the time"])
def test_batch_limit_does_not_grow_after_slow_or_smaller_batches(cells: int, took_ms: int) -> None:
    size = BatchSize(1_000)
    size.exceeded(8)

    assert not size.finished(cells, took_ms)
    assert 4 == size.most


def test_batches_that_outgrow_the_timed_out_size_are_unlimited() -> None:
    size = BatchSize(1_000)
    size.exceeded(6)
    grown = []
    while size.most is not None:
        grown.append(size.most)
        is_whole = size.finished(size.most, 10)

    assert ([3, 4, 5, 6], True) == (grown, is_whole)


@given(st.integers(1, 400), st.integers(1, 3_000))
def test_store_of_constant_speed_receives_everything_without_further_timeouts(ms: int, cells: int) -> None:
    size, late = BatchSize(1_000), []
    for round_number in range(60):
        left = cells
        while left:
            asked = min(left, size.most or left)  # the first of size.parts(range(left)), which would make thousands
            if asked * ms > size.timeout_ms:
                size.exceeded(asked)
                late.append(round_number)
            else:
                size.finished(asked, asked * ms)
                left -= asked

    assert set(late) <= {0}
