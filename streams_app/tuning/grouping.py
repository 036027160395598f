"""Which events are of one group: the order that brings them together (pure)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

POSITION_BITS: Final = 24
"""Of a sorted key: the last ones say where the event stands, so there are at most 16 777 216 events."""

_REST: Final = np.uint64((1 << POSITION_BITS) - 1)
_BLOCK: Final = 1 << 19


def order_of(hashes: NDArray[np.uint64], known_bits: int) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Where each event of the sorted columns stands now, and whether a group begins with it; events of a group keep their order.

    The first 40 bits of a hash and the position are one number, and these numbers are sorted where they are: that takes no memory
    beside them, and is far quicker than sorting positions by their hashes. Groups with 40 bits in common are parted afterwards.

    Args:
        hashes: Of the group of each event; used up.
        known_bits: So many leading bits are 0 in all of them.
    """
    events = len(hashes)
    if events > 1 << POSITION_BITS:
        raise ValueError(f"more than {1 << POSITION_BITS} events")
    rest = np.empty(events, np.uint32)
    for begin in range(0, events, _BLOCK):
        block = hashes[begin : begin + _BLOCK]
        block <<= np.uint64(known_bits)
        rest[begin : begin + _BLOCK] = block & _REST
        block &= ~_REST
        block |= np.arange(begin, begin + len(block), dtype=np.uint64)
    hashes.sort()
    order, firsts = np.empty(events, np.uint32), np.ones(events, bool)
    for begin in range(0, events, _BLOCK):
        block = hashes[begin : begin + _BLOCK]
        order[begin : begin + _BLOCK] = block & _REST
        firsts[begin + 1 : begin + len(block)] = (block[1:] ^ block[:-1]) > _REST
        if begin:
            firsts[begin] = (block[0] ^ hashes[begin - 1]) > _REST
    _part(rest, order, firsts)
    return order, firsts


def _part(rest: NDArray[np.uint32], order: NDArray[np.uint32], firsts: NDArray[np.bool_]) -> None:
    """Parts groups that the first bits of their hashes do not tell from each other, by the rest of them."""
    for begin in range(1, len(order), _BLOCK):
        end = min(begin + _BLOCK, len(order))
        rests = rest[order[begin - 1 : end]]
        clashes = np.flatnonzero(~firsts[begin:end] & (rests[1:] != rests[:-1])) + begin
        while len(clashes):
            clash = int(clashes[0])
            low = clash - int(firsts[clash::-1].argmax())
            after = firsts[clash + 1 :]
            high = clash + 1 + (int(after.argmax()) if after.any() else len(after))
            mixed = order[low:high]
            mixed[:] = mixed[np.argsort(rest[mixed], kind="stable")]
            firsts[low + 1 : high] = rest[mixed[1:]] != rest[mixed[:-1]]
            clashes = clashes[clashes >= high]
