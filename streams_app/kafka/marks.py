"""The low marks of a partition's folds, as they travel in a commit (pure).

The committed offset is the lowest mark of all folds. The metadata names the mark of each, so that a fold whose state is
lost resumes at its own, and a fold that is new begins by its own ``start``. Marks of folds unknown to this worker are
carried on: another worker of the application, newer or older, may have them. Where the broker keeps no metadata (the
embedded one), the committed offset is every fold's mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

from streams_app.kafka.commits import Committed


def marks_of(committed: Committed, folds: Iterable[str]) -> dict[str, int]:
    """The marks in a commit.

    Args:
        committed: From the broker.
        folds: Names of this worker's folds.

    Returns:
        Fold name → offset; without metadata the committed offset for each of ``folds``. A fold that is missing although there
        is metadata is new.
    """
    try:
        decoded = orjson.loads(committed.metadata) if committed.metadata else None
    except orjson.JSONDecodeError:
        decoded = None
    if not isinstance(decoded, dict) or not all(type(mark) is int and mark >= 0 for mark in decoded.values()):
        return dict.fromkeys(folds, committed.offset)
    return decoded


def commit_of(marks: Mapping[str, int]) -> Committed:
    """What to commit for these marks."""
    return Committed(min(marks.values()), orjson.dumps(dict(sorted(marks.items()))).decode())


def raised(marks: Mapping[str, int], lows: Mapping[str, int]) -> dict[str, int]:
    """Marks after the low watermarks were read; no mark goes back.

    Redis may have been rolled back since: what was committed has been delivered all the same.
    """
    return {**marks, **{fold: max(low, marks.get(fold, 0)) for fold, low in lows.items()}}
