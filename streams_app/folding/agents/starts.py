"""Where a fold begins in a partition in which it has no mark (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from streams_app.delivery.processor import Mark


def partitions_at_first_start(partition: int, elsewhere: Mapping[int, Mark | None], present: int) -> int:
    """The number of partitions the source had when a fold began; it decides where a partition without a mark begins.

    ``start = "latest"`` is about the first start of a fold. What was produced to a partition that was added later belongs to it
    from the beginning. Partitions are numbered, and only ever added: one was added later if its number is not below the count
    at the first start. That count is the note beside the mark, so whoever sees the one sees the other.

    Args:
        partition: Number of the partition that is claimed.
        elsewhere: Marks of the fold in the other partitions, see :meth:`streams_app.delivery.processor.Claim.elsewhere`.
        present: Number of partitions the source has now.

    Returns:
        The count; not above ``partition`` if that was added later. 0: the fold began before the count was noted, or as
        ``earliest``: whatever has no mark was added later. Where nobody can tell, as the broker keeps no metadata, the present one.
    """
    none_added = max(present, partition + 1)
    if None in elsewhere.values():
        return none_added
    counts = [int(mark.note) if mark.note.isdecimal() else 0 for mark in elsewhere.values() if mark is not None]
    return min(counts, default=none_added)
