"""The marks of a partition's processors, as they travel in a commit (pure).

The committed offset is the lowest mark of all. The metadata names the mark of each, so that one whose state is lost resumes at its
own, and one that is new begins where it wants to. Marks of names unknown to this worker are carried on: another worker of the
application, newer or older, may have them. Where the broker keeps no metadata (the embedded one), the committed offset is
everybody's mark.

The metadata is JSON, ``{"<name>": offset, …}``, and beside the marks ``"@notes"``: what a processor wants its next owner to know.
What would be longer than a broker takes is packed, see :mod:`streams_app.delivery.packed_marks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from streams_app.delivery.commits import Committed
from streams_app.delivery.packed_marks import MOST_METADATA_BYTES, packed, unpacked
from streams_app.delivery.processor import Mark

NOTES: Final = "@notes"
"""Key of the notes in the metadata; the name of a processor holds no ``@``."""


def marks_of(committed: Committed, names: Iterable[str]) -> dict[str, Mark]:
    """The marks in a commit.

    Args:
        committed: The commit that the broker holds.
        names: Names of this worker's processors.

    Returns:
        Name → mark; without metadata the committed offset for each of ``names``. A name that is missing although there is metadata
        is new.
    """
    noted = noted_in(committed)
    return dict.fromkeys(names, Mark(committed.offset)) if noted is None else noted


def noted_in(committed: Committed) -> dict[str, Mark] | None:
    """The marks in the metadata of a commit; None where there is none, or what is there is not ours."""
    found = unpacked(committed.metadata)
    if found is None:
        found = _decoded(committed.metadata)
    if found is None:
        return None
    offsets, notes = found
    return {name: Mark(offset, notes.get(name, "")) for name, offset in offsets.items()}


def commit_of(marks: Mapping[str, Mark]) -> Committed:
    """What to commit for these marks, of which there is at least one."""
    offsets = {name: mark.offset for name, mark in sorted(marks.items())}
    notes = {name: mark.note for name, mark in sorted(marks.items()) if mark.note}
    text = orjson.dumps(offsets | ({NOTES: notes} if notes else {})).decode()
    if len(text.encode()) > MOST_METADATA_BYTES:
        text = packed(offsets, notes)
    return Committed(min(offsets.values()), text)


def raised(marks: Mapping[str, Mark], lows: Mapping[str, Mark]) -> dict[str, Mark]:
    """The marks, raised to low watermarks that were read; no mark goes back.

    A low watermark may be below what is committed, as Redis was rolled back since: what was committed has been delivered all the
    same.
    """
    kept = {name: mark for name, mark in marks.items() if name in lows and lows[name].offset < mark.offset}
    return {**marks, **lows, **kept}


def _decoded(metadata: str) -> tuple[dict[str, int], dict[str, str]] | None:
    try:
        decoded: Any = orjson.loads(metadata) if metadata else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(decoded, dict):
        return None
    notes = decoded.pop(NOTES, {})
    are_offsets = all(type(offset) is int and offset >= 0 for offset in decoded.values())
    are_notes = isinstance(notes, dict) and all(isinstance(note, str) for note in notes.values())
    return (decoded, notes) if are_offsets and are_notes else None
