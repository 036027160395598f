"""Fingerprints of records that were read, to detect a truncated log (pure).

A broker may restart on an older copy of its disk, or an out-of-date replica may be elected leader. The topic keeps its id, but the
log ends at a lower offset, and new records get offsets that were read before. So the state stores fingerprints of the record at the
fence and of some older records, more of them near the fence. The log is unchanged up to the newest record whose fingerprint still
matches. A fingerprint is a checksum of what producers sent, so it does not depend on brokers. Leader epochs do not suffice: a
broker with an older copy continues from the epochs of that copy and assigns the same numbers again.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

GONE: Final = -1
"""Returned instead of a checksum if retention or compaction has removed the record, so that it cannot be compared."""

OTHER: Final = -2
"""Returned instead of a checksum if the log ends before the offset, or has a transaction marker there."""

MAX_NEAR: Final = 8
"""Number of newest fingerprints that are always retained."""

METADATA_NEAR: Final = 3
"""Number of newest fingerprints that the metadata of a commit always contains."""

SPREAD: Final = 3
"""Controls how many older fingerprints are retained; a higher value retains more.

An older fingerprint is dropped if the offsets of its two neighbours are close to each other, compared with their distance from the
newest fingerprint: their difference is at most 1/``SPREAD`` of the difference between the newer neighbour and the newest one.
"""

_SHAPE: Final = re.compile(r"(?:[0-9]+:[0-9a-f]{8}(?:,|$))*", re.ASCII)


class Fingerprint(NamedTuple):
    """Offset of a record, and the checksum of its time, key and value."""

    offset: int
    checksum: int


class Incarnation(NamedTuple):
    """Identity of a partition's log, as the broker reports it.

    The topic id changes if the topic is created again; it is "" if the broker has no topic ids.
    """

    topic_id: str
    leader_epoch: int


def checksum_of(record: Any) -> int:
    """Return the checksum of a record's time, key and value; a key or value of None counts differently from an empty one."""
    key, value = record.key, record.value
    begin = f"{record.timestamp}:{-1 if key is None else len(key)}:{-1 if value is None else len(value)}:".encode()
    return crc32(value or b"", crc32(key or b"", crc32(begin)))


def followed_by(kept: Sequence[Fingerprint], record: Any) -> tuple[Fingerprint, ...]:
    """Append the fingerprint of a newer record to ``kept``, and drop some older ones by :func:`thinned`."""
    newest = Fingerprint(record.offset, checksum_of(record))
    return thinned([*(one for one in kept if one.offset < newest.offset), newest])


def with_last(kept: tuple[Fingerprint, ...], records: Sequence[Any]) -> tuple[Fingerprint, ...]:
    """Append the fingerprint of the last of several records, see :func:`followed_by`, unless ``kept`` has it or a newer one."""
    if not records or (kept and kept[-1].offset >= records[-1].offset):
        return kept
    return followed_by(kept, records[-1])


def with_last_for_metadata(kept: tuple[Fingerprint, ...], records: Sequence[Any]) -> tuple[Fingerprint, ...]:
    """Add as :func:`with_last` does, and drop more of the older fingerprints, because the size of commit metadata is limited."""
    added = with_last(kept, records)
    return kept if added is kept else thinned(added, near=METADATA_NEAR, spread=1)


def thinned(kept: Sequence[Fingerprint], near: int = MAX_NEAR, spread: int = SPREAD) -> tuple[Fingerprint, ...]:
    """Drop some older fingerprints, so that they get sparser with age; the newest ``near`` and the oldest are always kept.

    ``kept`` contains at least one, in the order of their offsets.
    """
    newest = kept[-1].offset
    left = list(kept)
    at = len(left) - near - 1
    while at > 0:
        if (left[at + 1].offset - left[at - 1].offset) * spread <= newest - left[at + 1].offset:
            del left[at]
        at -= 1
    return tuple(left)


def up_to(kept: Iterable[Fingerprint], below: int) -> tuple[Fingerprint, ...]:
    """Return the fingerprints of offsets lower than ``below``."""
    return tuple(one for one in kept if one.offset < below)


def to_text(kept: Iterable[Fingerprint]) -> str:
    """Format fingerprints as ``offset:checksum,…`` with checksums of eight hexadecimal digits, to store them in the state."""
    return ",".join(f"{offset}:{checksum:08x}" for offset, checksum in kept)


def of_text(text: str) -> tuple[Fingerprint, ...]:
    """Parse fingerprints from the form of :func:`to_text`; return an empty tuple for any other text."""
    if not _SHAPE.fullmatch(text):
        return ()
    pairs = [one.split(":") for one in text.split(",") if one]
    return tuple(Fingerprint(int(offset), int(checksum, 16)) for offset, checksum in pairs)


async def common_end(kept: Sequence[Fingerprint], checksum_at: Callable[[int], Awaitable[int]]) -> int | None:
    """Compare a log with fingerprints of records that were read, given in the order of their offsets.

    For an offset, ``checksum_at`` returns the checksum of the current log; :data:`GONE` counts as no change, :data:`OTHER` as a
    change.

    Returns:
        None if no change was found. Else the offset after the newest record whose fingerprint matches, below which the log is
        unchanged; 0 if no fingerprint matches.
    """
    went_back = False
    for offset, checksum in reversed(kept):
        found = await checksum_at(offset)
        if found == checksum:
            return offset + 1 if went_back else None
        went_back = went_back or found != GONE
    return 0 if went_back else None
