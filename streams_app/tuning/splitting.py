"""Splits the events of a group by bounds other than the quiet period: hold, events, names, bytes, closing events (pure).

Where a record ends by these bounds depends on its first event, and not on the quiet period. So for each event, the end of a record
that begins with this event is computed once. For a candidate quiet period, the records of a session are found one after another:
the first begins with the session, and each further one where the record before ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams_app.folding.core.closing import Bounds
from streams_app.tuning.columns import Columns, Times
from streams_app.tuning.name_sets import limit_names

Positions = NDArray[np.int32]

FEW: Final = 64
"""If at most this many sessions remain to be split, a plain loop is faster than numpy."""

_BLOCK: Final = 1 << 19


def blocks(firsts: NDArray[np.bool_]) -> Iterator[slice]:
    """Divide sorted columns into slices of whole groups, of at most ``_BLOCK`` events unless one group has more."""
    begin, events = 0, len(firsts)
    while begin < events:
        end = min(begin + _BLOCK, events)
        if end < events:
            # Move back to the beginning of the last group in the block; if this group fills the whole block, forward to its end.
            back, forth = firsts[end:begin:-1], firsts[end:]
            if back.any():
                end -= int(back.argmax())
            else:
                end = end + int(forth.argmax()) if forth.any() else events
        yield slice(begin, end)
        begin = end


def next_starts(columns: Columns, bounds: Bounds) -> Positions | None:
    """Return, for each event, the end of a record that begins with this event: the position after the last event of the record.

    With ``leading``, an event that opens a group becomes an early record of its own, which a second record may follow. The returned
    position is then the end of the second record; :mod:`streams_app.tuning.replay` separates the two.

    Returns:
        The positions, none of them after the end of the group of its event; None if the bounds split no group.
    """
    found = np.empty(len(columns.after_ms), np.int32)
    is_any = False
    closing, kept = columns.closing, columns.kept_bytes
    for block in blocks(columns.firsts):
        after_ms, firsts = columns.after_ms[block], columns.firsts[block]
        following = found[block]
        is_long = block.stop - block.start > _BLOCK
        parts = _of_long_group(after_ms, bounds, following) if is_long else _of_groups(after_ms, firsts, bounds, following)
        if columns.sets.may_close:
            ends = [len(firsts)] if is_long else np.append(np.flatnonzero(firsts)[1:], len(firsts)).tolist()
            parts |= limit_names(columns.numbers[block], ends, columns.sets, following)
        if kept is not None:
            parts |= _limit_bytes(kept[block], bounds.max_bytes, following)
        if closing is not None:
            parts |= _after_closing(closing[block], following)
        following += block.start
        is_any = is_any or parts
    if bounds.leading:
        _after_early(columns, bounds, found)
    return found if is_any or bounds.leading else None


def _after_early(columns: Columns, bounds: Bounds, following: Positions) -> None:
    """Apply ``leading``: replace the end of each event's record by the end of the record that would follow the early record.

    No record follows if the next event belongs to another group, if the hold or the number of names closes the group before the
    next event, or if the early event itself closes the group. Then the end is the position after the early event.
    """
    events, closing, sets = len(following), columns.closing, columns.sets
    for begin in range(0, events, _BLOCK):
        own = np.arange(begin, min(begin + _BLOCK, events))
        after = np.minimum(own + 1, events - 1)
        is_alone = columns.firsts[after] | (own + 1 == events)
        is_alone |= columns.after_ms[after].astype(np.int64) - columns.after_ms[own] >= bounds.hold_ms
        if closing is not None:
            is_alone |= closing[own]
        if sets.may_close:
            is_alone |= sets.counts(columns.numbers[after]) > sets.max_changed
        following[own] = np.where(is_alone, own + 1, following[after])


def _of_groups(after_ms: Times, firsts: NDArray[np.bool_], bounds: Bounds, following: Positions) -> bool:
    ends = np.append(np.flatnonzero(firsts)[1:], len(firsts))
    limits = np.repeat(ends, np.diff(ends, prepend=0))
    low = after_ms.min()
    step = int(after_ms.max() - low) + 1
    # The scores of the groups are shifted so that they rise from group to group, and no search reaches beyond the next group.
    keys = np.repeat(np.arange(len(ends)) * (2 * step), np.diff(ends, prepend=0)) + (after_ms - low)
    found = np.searchsorted(keys, keys + min(bounds.hold_ms, step))
    if bounds.max_events:
        np.minimum(found, np.arange(len(found)) + bounds.max_events, out=found)
    np.minimum(found, limits, out=found)
    following[:] = found
    return bool((found < limits).any())


def _of_long_group(after_ms: Times, bounds: Bounds, following: Positions) -> bool:
    """Apply the bounds on hold and events to one group in pieces, because a few groups may have nearly all events."""
    events, is_any = len(after_ms), False
    last_ms = int(after_ms[-1])
    for begin in range(0, events, _BLOCK):
        piece = after_ms[begin : begin + _BLOCK].astype(np.int64)
        # Limited to the last score, because times beyond it may not fit the type of the scores, and another type would copy them.
        until = np.minimum(piece + min(bounds.hold_ms, last_ms + 1), last_ms + 1)
        found = np.searchsorted(after_ms, np.minimum(until, last_ms).astype(after_ms.dtype))
        found[until > last_ms] = events
        if bounds.max_events:
            np.minimum(found, np.arange(begin, begin + len(found)) + bounds.max_events, out=found)
        np.minimum(found, events, out=found)
        following[begin : begin + _BLOCK] = found
        is_any = is_any or bool((found < events).any())
    return is_any


def _limit_bytes(kept: NDArray[np.int64], most: int, following: Positions) -> bool:
    """Let records end before the first event that would exceed ``max_bytes``; return whether that shortens any of them."""
    totals = np.cumsum(kept)
    ends = np.searchsorted(totals, totals - kept + most, "right")
    is_shorter = bool((ends < following).any())
    np.minimum(following, ends, out=following)
    return is_shorter


def _after_closing(closing: NDArray[np.bool_], following: Positions) -> bool:
    """Let records end with the first event that closes its group; return whether that shortens any of them."""
    positions = np.where(closing, np.arange(len(closing)), len(closing))
    ends = np.minimum.accumulate(positions[::-1])[::-1] + 1
    is_shorter = bool((ends < following).any())
    np.minimum(following, ends, out=following)
    return is_shorter


def chained(starts: Positions, ends: Positions, following: Positions) -> list[Positions]:
    """Return the positions at which the second and later records of each session begin, unordered and in several arrays."""
    found: list[Positions] = []
    at = following[starts]
    while len(at) > FEW:
        inside = at < ends
        at, ends = at[inside], ends[inside]
        found.append(at)
        at = following[at]
    rest = array("i")
    for first, end in zip(at.tolist(), ends.tolist(), strict=True):
        position = first
        while position < end:
            rest.append(position)
            position = int(following[position])
    return [*found, np.frombuffer(rest, np.int32)]
