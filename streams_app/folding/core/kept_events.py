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
    """Return the number of bytes that an event in JSON adds to the size of its group, which ``max_bytes`` limits."""
    return len(json) + SEPARATOR_BYTES


def packed_events(events: Iterable[ScoredEvent], first_offset: int) -> bytes:
    """Pack the events of a run as one msgpack array, in which the offset and the JSON of each event follow one another.

    Args:
        events: The events.
        first_offset: Offset of the first event; the stored offsets are relative to it.
    """
    packed: bytes = _pack([part for event in events for part in (event.offset - first_offset, event.json)])
    return packed


def events_of(fields: Mapping[str, bytes]) -> list[tuple[int, bytes]]:
    """Unpack the kept events of a group; return pairs of offset and JSON, sorted by offset and without duplicates.

    Args:
        fields: The packed events of each run, by the first offset of the run.
    """
    found: dict[int, bytes] = {}
    for first, packed in fields.items():
        parts = msgpack.unpackb(packed, raw=True)
        found.update((int(first) + offset, json) for offset, json in zip(parts[::2], parts[1::2], strict=True))
    return sorted(found.items())
