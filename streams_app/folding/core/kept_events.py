"""The events of a group, as ``keep = "events"`` stores them (pure).

A run stores its events in one field: their offsets, relative to the first one, and their JSON. A field is written as a whole and is
named by the first offset, so a run that is written twice has the same field. If runs are cut in another way when they are read
again, two fields may hold the same event; its offset shows that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgpack

from streams_app.folding.core.event import ScoredEvent

SEPARATOR_BYTES: Final = 1
"""Added to the JSON of each event: the comma between the events of a record."""

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


def size_of_event(json: bytes) -> int:
    """Return what an event adds to the size of its group, in bytes, see ``max_bytes``."""
    return len(json) + SEPARATOR_BYTES


def packed_events(events: Iterable[ScoredEvent], first_offset: int) -> bytes:
    """Return the events of a run as they are stored: a msgpack array of offset, JSON, offset, JSON and so on.

    Args:
        events: The events.
        first_offset: Offset of the first event; the stored offsets are relative to it.
    """
    packed: bytes = _pack([part for event in events for part in (event.offset - first_offset, event.json)])
    return packed


def events_of(fields: Mapping[str, bytes]) -> list[tuple[int, bytes]]:
    """Return the events of stored fields in the order of their offsets, each once.

    Args:
        fields: First offset of a run → its packed events.
    """
    found: dict[int, bytes] = {}
    for first, packed in fields.items():
        parts = msgpack.unpackb(packed, raw=True)
        found.update((int(first) + offset, json) for offset, json in zip(parts[::2], parts[1::2], strict=True))
    return sorted(found.items())
