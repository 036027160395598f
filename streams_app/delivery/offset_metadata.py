"""Offsets of several processors in one Kafka commit (pure).

The committed offset is the lowest offset of all processors. The commit metadata contains the offset of each processor by name. A
processor whose state is lost resumes at its own offset, and a new one chooses where it starts. Offsets of names without a processor
in this worker are retained, because a newer or older worker of the application may run them. If the broker stores no metadata, the
committed offset applies to all processors.

The commit metadata is JSON, ``{"<name>": offset, …}``. The key ``"@notes"`` contains the metadata of each processor by name. If the
JSON exceeds the limit of a broker, a compact form is written: ``~<lowest offset>;<name>=<difference>,…``. The offset of a processor
is the lowest offset plus its difference. Names are sorted; the name ``17*eu`` stands for the first 17 characters of the previous
name followed by ``eu``. If a processor has metadata, its entry ends with a slash and the percent-encoded metadata.

Both forms are format 1. Metadata of a later format begins with ``@``, its number and a semicolon, which neither form does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import orjson

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.errors import FORMAT, NewerFormatError

METADATA_KEY: Final = "@notes"
"""Key for the metadata of the processors; it is no processor's name, because names contain no ``@``."""


class OffsetAndMetadata(NamedTuple):
    """The offset of a processor and its metadata, as stored in the metadata of a commit.

    Attributes:
        offset: Low watermark of the processor: lowest offset whose effect is not yet delivered. The committed offset of a
            partition is the lowest low watermark of its processors.
        metadata: Text for the next owner, which receives it in :attr:`.Claim.committed`; "" for none. All processors of a partition
            share the metadata limit of the broker (4 096 bytes).
    """

    offset: int
    metadata: str = ""


def check_format(tp: TP, metadata: str) -> None:
    """Raise a NewerFormatError if a newer version has made the commit, in a format that this version does not know."""
    found = _LATER_FORMAT.match(metadata)
    if found is not None and int(found[1]) > FORMAT:
        raise NewerFormatError(f"the commit of {tp}", found[1])


def offsets_of(committed: PartitionCommit, names: Iterable[str]) -> dict[str, OffsetAndMetadata]:
    """Read the offset and metadata of each processor from a commit.

    If the commit has metadata, the result contains all names in the metadata, also those that are not in ``names``; a processor
    whose name is missing is new. If the commit has no metadata, the result contains each of ``names`` with the committed offset.
    """
    in_metadata = offsets_in(committed)
    return dict.fromkeys(names, OffsetAndMetadata(committed.offset)) if in_metadata is None else in_metadata


def offsets_in(committed: PartitionCommit) -> dict[str, OffsetAndMetadata] | None:
    """Read the offset and metadata of each processor by name; None if this project did not write the metadata, or there is none."""
    found = unpacked(committed.metadata)
    if found is None:
        found = _decoded(committed.metadata)
    if found is None:
        return None
    offsets, metadata_by_name = found
    return {name: OffsetAndMetadata(offset, metadata_by_name.get(name, "")) for name, offset in offsets.items()}


def commit_of(positions: Mapping[str, OffsetAndMetadata]) -> PartitionCommit:
    """Build the commit of a partition: the lowest offset of its processors, and the offset of each of them as metadata."""
    offsets = {name: position.offset for name, position in sorted(positions.items())}
    metadata_by_name = {name: position.metadata for name, position in sorted(positions.items()) if position.metadata}
    text = orjson.dumps(offsets | ({METADATA_KEY: metadata_by_name} if metadata_by_name else {})).decode()
    if len(text.encode()) > MAX_METADATA_BYTES:
        text = packed(offsets, metadata_by_name)
    return PartitionCommit(min(offsets.values()), text)


def raised(positions: Mapping[str, OffsetAndMetadata], lows: Mapping[str, OffsetAndMetadata]) -> dict[str, OffsetAndMetadata]:
    """Raise the offsets of processors to their new low watermarks, ``lows``; return the offset and metadata of each one by name.

    No offset is lowered: after Redis was rolled back, a low watermark may be below the committed offset, although events up to that
    offset were delivered.
    """
    kept = {name: position for name, position in positions.items() if name in lows and lows[name].offset < position.offset}
    return {**positions, **lows, **kept}


def _decoded(metadata: str) -> tuple[dict[str, int], dict[str, str]] | None:
    try:
        decoded: Any = orjson.loads(metadata) if metadata else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(decoded, dict):
        return None
    metadata_by_name = decoded.pop(METADATA_KEY, {})
    are_offsets = all(type(offset) is int and offset >= 0 for offset in decoded.values())
    are_texts = isinstance(metadata_by_name, dict) and all(isinstance(text, str) for text in metadata_by_name.values())
    return (decoded, metadata_by_name) if are_offsets and are_texts else None


MAX_METADATA_BYTES: Final = 4_096
"""Default of the broker setting ``offset.metadata.max.bytes``."""

PREFIX: Final = "~"
"""First character of metadata in the compact form; JSON never begins with it."""

_LATER_FORMAT: Final = re.compile(r"@([0-9]{1,9});", re.ASCII)
_ENTRY: Final = re.compile(r"(?:([0-9]+)\*)?([a-z0-9_-]*)=([0-9]+)(?:/([^,;/=]+))?")


def packed(positions: Mapping[str, int], metadata_by_name: Mapping[str, str]) -> str:
    """Return commit metadata in the compact form, which the docstring of this module defines."""
    lowest = min(positions.values())
    return text_of(lowest, {name: position - lowest for name, position in positions.items()}, metadata_by_name)


def text_of(lowest: int, differences: Mapping[str, int], metadata_by_name: Mapping[str, str]) -> str:
    """Format compact commit metadata from the lowest offset and each processor's difference to it."""
    entries = []
    before = ""
    for name in sorted(differences):
        shared = next((at for at, pair in enumerate(zip(before, name, strict=False)) if pair[0] != pair[1]), len(before))
        short = f"{shared}*{name[shared:]}"
        text = f"/{quote(metadata_by_name[name], safe='')}" if metadata_by_name.get(name) else ""
        entries.append(f"{min(short, name, key=len)}={differences[name]}{text}")
        before = name
    return f"{PREFIX}{lowest};{','.join(entries)}"


def unpacked(text: str) -> tuple[dict[str, int], dict[str, str]] | None:
    """Parse compact commit metadata; return the offsets by name and the metadata by name. Return None for any other text."""
    lowest, _, rest = text.removeprefix(PREFIX).partition(";")
    if not text.startswith(PREFIX) or not lowest.isdecimal():
        return None
    positions: dict[str, int] = {}
    metadata_by_name: dict[str, str] = {}
    before = ""
    for entry in rest.split(","):
        found = _ENTRY.fullmatch(entry)
        if found is None:
            return None
        before = before[: int(found[1] or 0)] + found[2]
        positions[before] = int(lowest) + int(found[3])
        if found[4]:
            metadata_by_name[before] = unquote(found[4])
    return positions, metadata_by_name
