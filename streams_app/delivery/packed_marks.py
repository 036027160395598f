"""Marks of many processors in the few bytes of metadata that a broker takes with a commit (pure).

``~<lowest mark>;<name>=<difference>,…``: names in order, each without what it shares with the one before it (``17*eu`` repeats the
first 17 characters), offsets as differences from the lowest; behind a slash the note, percent-encoded. Names are needed in full:
they say whose state is meant, also to workers that do not have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

MOST_METADATA_BYTES: Final = 4_096
"""``offset.metadata.max.bytes`` of a broker, by default."""

MARK: Final = "~"
"""First character of packed metadata; the JSON that is not packed begins otherwise."""

_ENTRY: Final = re.compile(r"(?:([0-9]+)\*)?([a-z0-9_-]*)=([0-9]+)(?:/([^,;/=]+))?")


def packed(marks: Mapping[str, int], notes: Mapping[str, str]) -> str:
    """The metadata of a commit.

    Args:
        marks: Name → offset; at least one.
        notes: Name → note, of some of them.
    """
    lowest = min(marks.values())
    return text_of(lowest, {name: mark - lowest for name, mark in marks.items()}, notes)


def text_of(lowest: int, differences: Mapping[str, int], notes: Mapping[str, str]) -> str:
    """The metadata, made of the lowest mark and of how far each mark is above it."""
    entries = []
    before = ""
    for name in sorted(differences):
        shared = next((at for at, pair in enumerate(zip(before, name, strict=False)) if pair[0] != pair[1]), len(before))
        short = f"{shared}*{name[shared:]}"
        note = f"/{quote(notes[name], safe='')}" if notes.get(name) else ""
        entries.append(f"{min(short, name, key=len)}={differences[name]}{note}")
        before = name
    return f"{MARK}{lowest};{','.join(entries)}"


def unpacked(text: str) -> tuple[dict[str, int], dict[str, str]] | None:
    """Offsets and notes of :func:`packed`; None for anything else."""
    lowest, _, rest = text.removeprefix(MARK).partition(";")
    if not text.startswith(MARK) or not lowest.isdecimal():
        return None
    marks: dict[str, int] = {}
    notes: dict[str, str] = {}
    before = ""
    for entry in rest.split(","):
        found = _ENTRY.fullmatch(entry)
        if found is None:
            return None
        before = before[: int(found[1] or 0)] + found[2]
        marks[before] = int(lowest) + int(found[3])
        if found[4]:
            notes[before] = unquote(found[4])
    return marks, notes
