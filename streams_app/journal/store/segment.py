"""Describes a segment of a journal, and encodes this description for Redis (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgpack

LARGEST_BYTES: Final = 600
"""Maximum total size in bytes of the keys in a segment's list of largest keys: a claim reads the lists of all segments."""

Form = Literal["raw", "packed", "gap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The events of all keys in a range of offsets of a shard: a UTC day, or a part of one.

    Attributes:
        first: First offset, which identifies the segment.
        day: UTC day of the segment, as in ``2026-08-20``.
        part: Number of the segment within the day, from 0 on.
        form: ``raw`` if the blocks are as they were appended; ``packed`` if they were replaced by compressed blocks, which
            neighbouring keys share; ``gap`` if the source had lost the offsets, so that there are no blocks.
        generation: Random name of the segment's set of blocks; staged blocks get a new one.
        is_closed: Whether the segment was closed, so that it receives no more events even if it is the last one. Segments before
            the last one receive none in any case.
        received_bytes: Size of the keys, values and headers of its events.
        stored_bytes: Estimated bytes that its blocks need in Redis, see ``core/block.py``.
        newest_ms: Clock of the shard after the last event: the newest record time so far, limited by the trusted wall clock.
        largest: The keys with the most received bytes, each with this number. At most ten keys, limited by :data:`LARGEST_BYTES`.
        last: Last offset, which for the open segment is the fence; None before the first append.
    """

    first: int
    day: str
    part: int = 0
    form: Form = "raw"
    generation: str = ""
    is_closed: bool = False
    entries: int = 0
    received_bytes: int = 0
    stored_bytes: int = 0
    newest_ms: int = 0
    largest: tuple[tuple[bytes, int], ...] = ()
    last: int | None = None


def packed_segment(segment: Segment) -> bytes:
    """Encode the description of a segment as a msgpack map, without its first offset, under which Redis stores the description."""
    about = {name: getattr(segment, name) for name in Segment.__slots__ if name not in ("first", "last")}
    while sum(len(key) for key, _ in about["largest"]) > LARGEST_BYTES:
        about["largest"] = about["largest"][:-1]
    packed: bytes = msgpack.packb({**about, "last": segment.last}, use_bin_type=False)
    return packed


def segments_of(about: Mapping[bytes, bytes], fence: int) -> tuple[Segment, ...]:
    """Decode the descriptions of segments by their first offsets; return the segments in the order of their offsets.

    The entry ``staged`` is ignored. The last segment ends at the fence; segments above it are left out.
    """
    firsts = sorted(int(first) for first in about if first != b"staged" and int(first) <= fence)
    lasts = [*(first - 1 for first in firsts[1:]), fence][: len(firsts)]
    return tuple(_segment(first, last, about[b"%d" % first]) for first, last in zip(firsts, lasts, strict=True))


def _segment(first: int, last: int, packed: bytes) -> Segment:
    about = msgpack.unpackb(packed, raw=True, strict_map_key=False)
    found = {name.decode(): value for name, value in about.items()}
    texts = {name: found[name].decode() for name in ("day", "form", "generation")}
    largest = tuple((key, count) for key, count in found.get("largest") or ())
    # If an append failed half-way, the description already counts events above the fence: at most one per offset.
    beyond = max(0, (found.get("last") or 0) - last)
    entries = max(0, found["entries"] - beyond)
    return Segment(**{**found, **texts, "first": first, "last": last, "entries": entries, "largest": largest})
