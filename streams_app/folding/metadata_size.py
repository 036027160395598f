"""Checks that a commit of a source has room for the positions of all its folds, which are stored as commit metadata (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from streams_app.delivery.offset_metadata import MAX_METADATA_BYTES, text_of
from streams_app.fold import Fold

MAX_OFFSET: Final = 10**13 - 1
"""An offset with the maximum number of digits: offsets are less than 2^40, as the version of a folded record requires."""
MAX_PARTITIONS: Final = 9_999


def metadata_bytes(names: Iterable[str], latest: Iterable[str] = ()) -> int:
    """Return the maximum size of commit metadata with the positions of these folds, in bytes.

    The positions of the folds in ``latest``, which have ``start = "latest"``, also store a partition count.
    """
    return len(text_of(MAX_OFFSET, dict.fromkeys(names, MAX_OFFSET), dict.fromkeys(latest, str(MAX_PARTITIONS))))


def too_long(source: str, names: Sequence[str], latest: Iterable[str] = ()) -> str | None:
    """Return an error text if the positions of these folds may exceed the size of commit metadata; None if they fit."""
    most = metadata_bytes(names, latest)
    if most <= MAX_METADATA_BYTES:
        return None
    offsets = len(names) * len(f"={MAX_OFFSET},")
    return (
        f"{len(names)} folds of {source} are too many for one application: Kafka stores an entry for each beside the committed "
        f"offset, {most - offsets} bytes for the names and {offsets} for offsets of up to {len(str(MAX_OFFSET))} digits make "
        f"{most}, and a broker takes {MAX_METADATA_BYTES} (offset.metadata.max.bytes); shorten their names, or divide them "
        "among applications (app_id)"
    )


def faults_of(folds: Iterable[Fold]) -> list[str]:
    """Return an error text for each source with more folds than commit metadata has room for, see :func:`too_long`."""
    by_source: dict[str, list[Fold]] = {}
    for fold in folds:
        by_source.setdefault(fold.source, []).append(fold)
    found = [
        too_long(source, [fold.name for fold in mine], [fold.name for fold in mine if fold.start == "latest"])
        for source, mine in by_source.items()
    ]
    return [fault for fault in found if fault]
