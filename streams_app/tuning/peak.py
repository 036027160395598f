"""Most groups open in the same instant (pure)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams_app.tuning.columns import Times

_SPANS: Final = 1 << 20
_BLOCK: Final = 1 << 19
_LOOKED_AT: Final = 1 << 20
"""Beginnings and ends that are sorted at once."""


def most_open(opens: Times, closes: Times) -> tuple[int, int]:
    """Most intervals that hold the same instant; both of their ends belong to them.

    The time is parted into a million spans of equal length. How many are open when a span begins is exact, and with those that open
    within it is an upper limit of what is open at once in the span. Only spans whose limit is above the best that is known are
    looked into, those with the highest limits first: few, as a rule, and far less work and memory than sorting millions of times.

    Args:
        opens: Where the intervals begin, in any order; never negative. Some at least.
        closes: Where they end, in any order, as many.

    Returns:
        How many there are, and an instant at which they are.
    """
    shift = max(0, int(opens.max()).bit_length() - _SPANS.bit_length() + 1)
    return _most_from(opens, closes, 0, shift, 0)


def _most_from(opens: Times, closes: Times, low: int, shift: int, before: int) -> tuple[int, int]:
    """The same from an instant on, in a million spans of ``2 ** shift`` each.

    Args:
        opens: All beginnings.
        closes: All ends.
        low: The instant.
        shift: Length of a span.
        before: How many are open when the first span begins, without those that begin then.
    """
    opening, closing = _counted(opens, low, shift), _counted(closes, low, shift)
    begun = before + np.cumsum(opening - closing) - opening + closing
    exact = begun if shift else begun + opening
    span = int(exact.argmax())
    most, instant = int(exact[span]), low + (span << shift)
    limits = begun + opening
    while shift and len(wanted := np.flatnonzero(limits > most)):
        wanted = wanted[np.argsort(-limits[wanted], kind="stable")]
        times = np.cumsum(opening[wanted] + closing[wanted])
        some = np.sort(wanted[: max(1, int(np.searchsorted(times, _LOOKED_AT)))])
        limits[some] = 0
        if times[0] > _LOOKED_AT:
            inner = max(0, shift - _SPANS.bit_length() + 1)
            found = _most_from(opens, closes, low + (int(some[0]) << shift), inner, int(begun[some[0]]))
        else:
            found = _most_in(_within(opens, some, low, shift), _within(closes, some, low, shift), some, low, shift, begun[some])
        most, instant = max((most, instant), found, key=lambda each: each[0])
    return most, instant


def _most_in(
    opens: NDArray[np.int64],
    closes: NDArray[np.int64],
    spans: NDArray[np.int64],
    low: int,
    shift: int,
    begun: NDArray[np.int64],
) -> tuple[int, int]:
    """The same in some spans, by sorting what begins and ends there.

    Args:
        opens: Beginnings in these spans.
        closes: Ends in these spans.
        spans: In rising order; each has a beginning.
        low: Where the first of all spans begins.
        shift: Length of a span.
        begun: How many are open when each of these spans begins.
    """
    opens.sort()
    closes.sort()
    # Of those looked into, how many opened and closed in the spans before that of each opening.
    edges = low + (spans << shift)
    opened_before, closed_before = np.searchsorted(opens, edges), np.searchsorted(closes, edges)
    of = np.searchsorted(spans, (opens - low) >> shift)
    opened = np.searchsorted(opens, opens, "right") - opened_before[of]
    closed = np.searchsorted(closes, opens, "left") - closed_before[of]
    here = begun[of] + opened - closed
    at = int(here.argmax())
    return int(here[at]), int(opens[at])


def _spans_of(times: Times, low: int, shift: int) -> NDArray[np.int64]:
    """In which span each time lies; ``_SPANS`` stands for those before the first and after the last one."""
    spans = (times.astype(np.int64) - low) >> shift
    spans[(spans < 0) | (spans > _SPANS)] = _SPANS
    return spans


def _counted(times: Times, low: int, shift: int) -> NDArray[np.int64]:
    """How many times lie in each span."""
    found = np.zeros(_SPANS + 1, np.int64)
    for begin in range(0, len(times), _BLOCK):
        found += np.bincount(_spans_of(times[begin : begin + _BLOCK], low, shift), minlength=_SPANS + 1)
    return found[:_SPANS]


def _within(times: Times, some: NDArray[np.int64], low: int, shift: int) -> NDArray[np.int64]:
    """The times that lie in some spans."""
    found, is_wanted = [], np.zeros(_SPANS + 1, bool)
    is_wanted[some] = True
    for begin in range(0, len(times), _BLOCK):
        block = times[begin : begin + _BLOCK]
        found.append(block[is_wanted[_spans_of(block, low, shift)]].astype(np.int64))
    return np.concatenate(found)
