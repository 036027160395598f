"""Which records a log had at some of the offsets that were read: what tells a log that went back (pure).

A topic keeps its id when a broker comes back with an older copy of its disk, or when a replica that is behind is elected: the log
ends lower, and what is appended then stands at offsets that were read before. So a fingerprint of the record at the fence is kept
with the fence, and some of older records, denser towards the fence: the newest that is still there says up to where the log is the
one that was read. A fingerprint is a checksum of what producers gave the record, so that it survives any change of brokers. Leader
epochs would not do: a broker that comes back counts on from those of its copy, and gives the same numbers out once more.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

GONE: Final = -1
"""In place of a checksum: retention or compaction has removed the record, so that nobody can tell."""

OTHER: Final = -2
"""In place of a checksum: the log ends below, or has something else than a record there."""

MOST_NEAR: Final = 8
"""So many of the newest are kept whatever their distance."""

SPREAD: Final = 3
"""The higher, the more of the older ones remain: two neighbours of one that is dropped are so many times closer than the newest."""

_SHAPE: Final = re.compile(r"(?:[0-9]+:[0-9a-f]{8}(?:,|$))*", re.ASCII)


class Fingerprint(NamedTuple):
    """What a record was: its offset, and the checksum of its time, key and value."""

    offset: int
    checksum: int


class Incarnation(NamedTuple):
    """What a broker says of the log of a partition.

    Attributes:
        topic_id: Id of the topic, which is another one where it was made again; "" where the broker gives none.
        leader_epoch: Which of all leaders the partition has ever had leads it now.
    """

    topic_id: str
    leader_epoch: int


def checksum_of(record: Any) -> int:
    """Checksum of a record's time, key and value, told apart where one of them is missing."""
    key, value = record.key, record.value
    begin = f"{record.timestamp}:{-1 if key is None else len(key)}:{-1 if value is None else len(value)}:".encode()
    return crc32(value or b"", crc32(key or b"", crc32(begin)))


def followed_by(kept: Sequence[Fingerprint], record: Any) -> tuple[Fingerprint, ...]:
    """The fingerprints, in the order of their offsets, with that of a further record; some older ones are dropped."""
    newest = Fingerprint(record.offset, checksum_of(record))
    return thinned([*(one for one in kept if one.offset < newest.offset), newest])


def thinned(kept: Sequence[Fingerprint], near: int = MOST_NEAR, spread: int = SPREAD) -> tuple[Fingerprint, ...]:
    """Drops what its neighbours stand for as well: the farther from the newest, the fewer remain. The oldest is never dropped."""
    newest = kept[-1].offset
    left = list(kept)
    at = len(left) - near - 1
    while at > 0:
        if (left[at + 1].offset - left[at - 1].offset) * spread <= newest - left[at + 1].offset:
            del left[at]
        at -= 1
    return tuple(left)


def up_to(kept: Iterable[Fingerprint], below: int) -> tuple[Fingerprint, ...]:
    """Those below an offset."""
    return tuple(one for one in kept if one.offset < below)


def to_text(kept: Iterable[Fingerprint]) -> str:
    """The text in which they are stored."""
    return ",".join(f"{offset}:{checksum:08x}" for offset, checksum in kept)


def of_text(text: str) -> tuple[Fingerprint, ...]:
    """The inverse of :func:`to_text`; nothing for any other text, as of a state that was written without."""
    if not _SHAPE.fullmatch(text):
        return ()
    pairs = [one.split(":") for one in text.split(",") if one]
    return tuple(Fingerprint(int(offset), int(checksum, 16)) for offset, checksum in pairs)


async def common_end(kept: Sequence[Fingerprint], checksum_at: Callable[[int], Awaitable[int]]) -> int | None:
    """Up to where a log is still the one that was read.

    Args:
        kept: In the order of their offsets.
        checksum_at: Checksum of the record that a log has at an offset now; :data:`GONE` or :data:`OTHER`.

    Returns:
        None: as far as anybody can tell it is all there. Else an offset below which everything is as it was, as high as can be
        told; 0 where none of the fingerprints is found.
    """
    went_back = False
    for offset, checksum in reversed(kept):
        found = await checksum_at(offset)
        if found == checksum:
            return offset + 1 if went_back else None
        went_back = went_back or found != GONE
    return 0 if went_back else None
