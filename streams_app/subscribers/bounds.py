"""How much of one partition is held in memory at most, and how much a record takes (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from streams_app.events.headers import header_bytes

MOST_UNFINISHED: Final = 10_000
MOST_UNFINISHED_BYTES: Final = 64 * 1024 * 1024
"""With so many unfinished events, or so many bytes of them, the reader of the partition pauses; until then one that fails delays no
other."""

HEADER_BYTES: Final = 100
"""A header takes about so much beside its name and value: thousands of empty ones are not nothing."""


def sizes_of(records: Sequence[Any]) -> list[int]:
    """About how many bytes each record takes: of its key, its value and its headers."""
    sizes = [len(record.value or b"") + len(record.key or b"") for record in records]
    if any([record.headers for record in records]):
        headers = [record.headers for record in records]
        sizes = [size + header_bytes(some) + HEADER_BYTES * len(some) for size, some in zip(sizes, headers, strict=True)]
    return sizes
