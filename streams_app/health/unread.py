"""Since when records of a partition wait that a read store or a subscriber has not read (pure).

The timestamp of such a record is unknown. Its age follows from its reader, which has been at the same position since then. If the
reader moves on, it fetches records, and the oldest of those is older than any unread one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

Partition = TypeVar("Partition", bound=Hashable)


class Unread(NamedTuple):
    """Position of a reader with unread records, and the wall clock in ms when it was first observed there with unread records."""

    position: int
    since_ms: int


def unread_since(
    before: Mapping[Partition, Unread], ranges: Mapping[Partition, tuple[int, int]], now_ms: int
) -> dict[Partition, Unread]:
    """Return the partitions that have unread records.

    Args:
        before: The result of the previous call.
        ranges: Position of the reader and end of the log of each partition.
    """
    unread = {tp: before.get(tp, Unread(position, now_ms)) for tp, (position, end) in ranges.items() if position < end}
    return {tp: one if one.position == ranges[tp][0] else Unread(ranges[tp][0], now_ms) for tp, one in unread.items()}
