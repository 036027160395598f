"""The low marks of a partition's folds, as they travel in a commit (pure).

The committed offset is the lowest mark of all folds. The metadata names the mark of each, so that a fold whose state is
lost resumes at its own, and a fold that is new begins by its own ``start``. Marks of folds unknown to this worker are
carried on: another worker of the application, newer or older, may have them. Where the broker keeps no metadata (the
embedded one), the committed offset is every fold's mark.

The metadata is JSON, ``{"<fold>": offset, …}``, and beside the marks ``"@partitions"``: how many partitions the source had when
a fold with ``start = "latest"`` began. What would be longer than a broker takes is packed, see
:mod:`streams_app.delivery.packed_marks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from streams_app.delivery.commits import Committed
from streams_app.delivery.packed_marks import MOST_METADATA_BYTES, packed, unpacked

PARTITIONS: Final = "@partitions"
"""No fold is called so."""


def marks_of(committed: Committed, folds: Iterable[str]) -> dict[str, int]:
    """The marks in a commit.

    Args:
        committed: From the broker.
        folds: Names of this worker's folds.

    Returns:
        Fold name → offset; without metadata the committed offset for each of ``folds``. A fold that is missing although there
        is metadata is new.
    """
    noted = _noted(committed.metadata)
    if noted is None:
        return dict.fromkeys(folds, committed.offset)
    decoded, _ = noted
    return decoded


def began_of(committed: Committed) -> dict[str, int]:
    """Fold name → partitions of the source when it began, as far as that is noted."""
    noted = _noted(committed.metadata)
    return {} if noted is None else noted[1]


def commit_of(marks: Mapping[str, int], began: Mapping[str, int] | None = None) -> Committed:
    """What to commit for these marks.

    Args:
        marks: Fold name → offset; at least one.
        began: Fold name → partitions of the source when it began; only those of ``marks`` are noted.
    """
    noted = {name: count for name, count in sorted((began or {}).items()) if name in marks}
    text = orjson.dumps(dict(sorted(marks.items())) | ({PARTITIONS: noted} if noted else {})).decode()
    if len(text) > MOST_METADATA_BYTES:
        text = packed(marks, noted)
    return Committed(min(marks.values()), text)


def raised(marks: Mapping[str, int], lows: Mapping[str, int]) -> dict[str, int]:
    """Marks after the low watermarks were read; no mark goes back.

    Redis may have been rolled back since: what was committed has been delivered all the same.
    """
    return {**marks, **{fold: max(low, marks.get(fold, 0)) for fold, low in lows.items()}}


def began_with(fold: str, partition: int, commits: Mapping[int, Committed], present: int) -> int:
    """How many partitions the source had when a fold began; asked where it has no mark yet.

    ``start = "latest"`` is about the first start of a fold. What was produced to a partition that was added later belongs to it
    from the beginning. Partitions are numbered, and only ever added: one was added later if its number is not below the count
    at the first start. That count is in the same commit as the mark, so whoever sees the one sees the other.

    Args:
        fold: Without a mark in ``partition``.
        partition: That is claimed.
        commits: Of the other partitions of the source, as far as there are any.
        present: Partitions the source has now.

    Returns:
        The count; not above ``partition`` if that was added later. 0: the fold began before the count was noted, or as
        ``earliest``: whatever has no mark was added later. Where nobody can tell, as the broker keeps no metadata, the present one.
    """
    none_added = max(present, partition + 1)
    counts = []
    for number, committed in commits.items():
        noted = _noted(committed.metadata)
        if number == partition:
            continue
        if noted is None:
            return none_added
        if fold in noted[0]:
            counts.append(noted[1].get(fold, 0))
    return min(counts, default=none_added)


def _noted(metadata: str) -> tuple[dict[str, int], dict[str, int]] | None:
    """Marks and counts; None where there are none, or not ours."""
    if found := unpacked(metadata):
        return found
    try:
        decoded: Any = orjson.loads(metadata) if metadata else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(decoded, dict):
        return None
    began = decoded.pop(PARTITIONS, {})
    return (decoded, began) if _are_numbers(decoded) and _are_numbers(began) else None


def _are_numbers(found: Any) -> bool:
    return isinstance(found, dict) and all(type(number) is int and number >= 0 for number in found.values())
