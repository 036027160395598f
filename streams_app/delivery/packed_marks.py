"""Marks of many folds in the few bytes of metadata that a broker takes with a commit (pure).

``~<lowest mark>;<fold>=<difference>,…``: names in order, each without what it shares with the one before it (``17*eu`` repeats the
first 17 characters), offsets as differences from the lowest; behind a slash the partitions of the source when the fold began.
Names are needed in full: they say which fold's state is meant, also to workers that do not have the fold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from streams_app.fold import Fold

MOST_METADATA_BYTES: Final = 4_096
"""``offset.metadata.max.bytes`` of a broker, by default."""

MARK: Final = "~"
MOST_OFFSET: Final = 10**13 - 1
"""Offsets end at 2^40, see the version of a folded record."""
MOST_PARTITIONS: Final = 9_999

_ENTRY: Final = re.compile(r"(?:([0-9]+)\*)?([a-z0-9_-]*)=([0-9]+)(?:/([0-9]+))?")


def packed(marks: Mapping[str, int], began: Mapping[str, int]) -> str:
    """The metadata of a commit.

    Args:
        marks: Fold name → offset; at least one.
        began: Fold name → partitions of the source when it began, of some of them.
    """
    lowest = min(marks.values())
    return _text(lowest, {name: mark - lowest for name, mark in marks.items()}, began)


def unpacked(text: str) -> tuple[dict[str, int], dict[str, int]] | None:
    """Marks and counts of :func:`packed`; None for anything else."""
    lowest, _, rest = text.removeprefix(MARK).partition(";")
    if not text.startswith(MARK) or not lowest.isdecimal():
        return None
    marks: dict[str, int] = {}
    began: dict[str, int] = {}
    before = ""
    for entry in rest.split(","):
        found = _ENTRY.fullmatch(entry)
        if found is None:
            return None
        before = before[: int(found[1] or 0)] + found[2]
        marks[before] = int(lowest) + int(found[3])
        if found[4]:
            began[before] = int(found[4])
    return marks, began


def metadata_bytes(names: Iterable[str], latest: Iterable[str] = ()) -> int:
    """The most that the marks of these folds can need.

    Args:
        names: Of all folds of one source.
        latest: Those of them with ``start = "latest"``.
    """
    return len(_text(MOST_OFFSET, dict.fromkeys(names, MOST_OFFSET), dict.fromkeys(latest, MOST_PARTITIONS)))


def too_long(source: str, names: Sequence[str], latest: Iterable[str] = ()) -> str | None:
    """What to say of folds whose marks a broker may refuse; None where they fit.

    Args:
        source: Of these folds.
        names: Theirs.
        latest: Those of them with ``start = "latest"``.
    """
    most = metadata_bytes(names, latest)
    if most <= MOST_METADATA_BYTES:
        return None
    offsets = len(names) * len(f"={MOST_OFFSET},")
    return (
        f"{len(names)} folds of {source} are too many for one application: Kafka keeps a mark of each beside the committed "
        f"offset, {most - offsets} bytes for the names and {offsets} for offsets of up to {len(str(MOST_OFFSET))} digits make "
        f"{most}, and a broker takes {MOST_METADATA_BYTES} (offset.metadata.max.bytes); shorten their names, or divide them "
        "among applications (app_id)"
    )


def faults_of(folds: Iterable[Fold]) -> list[str]:
    """A sentence for each source whose folds are too many, see :func:`too_long`."""
    by_source: dict[str, list[Fold]] = {}
    for fold in folds:
        by_source.setdefault(fold.source, []).append(fold)
    found = [
        too_long(source, [fold.name for fold in mine], [fold.name for fold in mine if fold.start == "latest"])
        for source, mine in by_source.items()
    ]
    return [fault for fault in found if fault]


def _text(lowest: int, differences: Mapping[str, int], began: Mapping[str, int]) -> str:
    entries = []
    before = ""
    for name in sorted(differences):
        shared = next((at for at, pair in enumerate(zip(before, name, strict=False)) if pair[0] != pair[1]), len(before))
        short = f"{shared}*{name[shared:]}"
        count = f"/{began[name]}" if name in began else ""
        entries.append(f"{min(short, name, key=len)}={differences[name]}{count}")
        before = name
    return f"{MARK}{lowest};{','.join(entries)}"
