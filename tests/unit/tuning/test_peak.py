"""Most groups open at the same instant, compared with counting at every instant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams_app.tuning.memory import max_open

INTERVALS = st.tuples(st.sampled_from([0, 1, 2, 3, 1_000, 1_048_575, 1_048_576, 5_000_000, 5_000_003, 2**31]), st.integers(0, 9))


@given(st.lists(INTERVALS, min_size=1, max_size=40), st.sampled_from([np.uint32, np.int64]), st.sampled_from([1 << 20, 16, 2]))
@example([(5, 0), (5, 0)], np.uint32, 2)
@example([(2**31, 3), (2**31 + 1, 0), (2**31 + 2, 5), (2**31 - 4, 4)], np.uint32, 1 << 20)
def test_peak_is_the_maximum_number_of_overlapping_spans(intervals: list[tuple[int, int]], dtype: type, spans: int) -> None:
    opens, closes = [begin for begin, _ in intervals], [begin + length for begin, length in intervals]
    with pytest.MonkeyPatch.context() as patch:
        # A small limit on spans, of which few are visited at once: the rest is split again.
        patch.setattr("streams_app.tuning.memory._SPANS", spans)
        patch.setattr("streams_app.tuning.memory._SAMPLE_TIMES", spans)
        most, instant = max_open(np.array(opens, dtype), np.array(closes, dtype))

    def count(at: int) -> int:
        return sum(begin <= at <= end for begin, end in zip(opens, closes, strict=True))

    assert max(count(at) for at in opens) == most
    assert count(instant) == most


@pytest.mark.parametrize("span_ms", [1_000, 10_000_000, 4_000_000_000])
def test_peak_of_millions_of_spans_matches_sorting(span_ms: int) -> None:
    random = np.random.default_rng(3)
    opens = random.integers(0, span_ms, 20_000)
    closes = opens + random.integers(0, span_ms // 50 + 1, 20_000)
    rising, ends = np.sort(opens), np.sort(closes)
    expected = np.searchsorted(rising, rising, "right") - np.searchsorted(ends, rising, "left")

    assert int(expected.max()) == max_open(opens, closes)[0]
