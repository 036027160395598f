"""Encoding of the events of a group for ``keep = "events"`` (pure).

The consecutive events of a *run* (see :mod:`streams_app.folding.core.chunks`) are stored in one hash field, named by the first
offset, so writing a run twice overwrites the field. If the events are cut into other runs when they are read again, two fields may
contain the same event; :func:`events_of` removes duplicates by offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgpack

from streams_app.folding.core.event import ScoredEvent

SEPARATOR_BYTES: Final = 1
"""Number of bytes that are added to the size of each event's JSON, for the comma between the events of a record."""

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


def size_of_event(json: bytes) -> int:
    """Return what an event in JSON adds to the size of its group, which ``max_bytes`` limits."""
    return len(json) + SEPARATOR_BYTES


def packed_events(events: Iterable[ScoredEvent], first_offset: int) -> bytes:
    """Pack the events of a run as one msgpack array of offsets, relative to ``first_offset``, and JSON."""
    packed: bytes = _pack([part for event in events for part in (event.offset - first_offset, event.json)])
    return packed


def events_of(fields: Mapping[str, bytes]) -> list[tuple[int, bytes]]:
    """Unpack runs, given by their first offsets; return pairs of offset and JSON, sorted by offset and without duplicates."""
    found: dict[int, bytes] = {}
    for first, packed in fields.items():
        parts = msgpack.unpackb(packed, raw=True)
        found.update((int(first) + offset, json) for offset, json in zip(parts[::2], parts[1::2], strict=True))
    return sorted(found.items())
