"""Most groups open in the same instant (pure)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.signedinteger[Any] | np.unsignedinteger[Any]]

_SPANS: Final = 1 << 20
_BLOCK: Final = 1 << 19


def most_open(opens: Times, closes: Times) -> tuple[int, int]:
    """Most intervals that hold the same instant; both of their ends belong to them.

    The time is parted into a million spans of equal length. How many are open when a span begins is exact, and with those that open
    within it is an upper limit of what is open at once in the span. Only spans whose limit is above the best beginning are looked
    into: few, as a rule, and far less work than sorting millions of times.

    Args:
        opens: Where the intervals begin, in any order; never negative. Some at least.
        closes: Where they end, in any order, as many.

    Returns:
        How many there are, and an instant at which they are.
    """
    shift = max(0, int(opens.max()).bit_length() - _SPANS.bit_length() + 1)
    opening, closing = _counted(opens, shift), _counted(closes, shift)
    begun = np.cumsum(opening - closing) - opening + closing
    limits = begun + opening if shift else np.zeros_like(begun)
    exact = begun if shift else begun + opening
    span = int(exact.argmax())
    most, instant = int(exact[span]), span << shift
    wanted = limits > most
    if not wanted.any():
        return most, instant
    some_opens, some_closes = _within(opens, wanted, shift), _within(closes, wanted, shift)
    some_opens.sort()
    some_closes.sort()
    before = np.flatnonzero(wanted)
    # Of those looked into, how many opened and closed in the spans before that of each opening.
    opened_before, closed_before = np.append(0, np.cumsum(opening[before])), np.append(0, np.cumsum(closing[before]))
    for begin in range(0, len(some_opens), _BLOCK):
        block = some_opens[begin : begin + _BLOCK]
        spans = (block >> shift).astype(np.int64)
        numbers = np.searchsorted(before, spans)
        opened = np.searchsorted(some_opens, block, "right") - opened_before[numbers]
        closed = np.searchsorted(some_closes, block, "left") - closed_before[numbers]
        here = begun[spans] + opened - closed
        at = int(here.argmax())
        if here[at] > most:
            most, instant = int(here[at]), int(block[at])
    return most, instant


def _counted(times: Times, shift: int) -> NDArray[np.int64]:
    """How many times lie in each span; those after the last one are left out."""
    found = np.zeros(_SPANS + 1, np.int64)
    for begin in range(0, len(times), _BLOCK):
        spans = np.minimum(times[begin : begin + _BLOCK] >> shift, _SPANS)
        found += np.bincount(spans.astype(np.int64), minlength=_SPANS + 1)
    return found[:_SPANS]


def _within(times: Times, wanted: NDArray[np.bool_], shift: int) -> Times:
    """The times that lie in the spans wanted."""
    found = []
    wanted = np.append(wanted, False)
    for begin in range(0, len(times), _BLOCK):
        block = times[begin : begin + _BLOCK]
        found.append(block[wanted[np.minimum(block >> shift, _SPANS)]])
    return np.concatenate(found)
