"""Checks whether the events of a file can be folded by the given fields; if not, explains why (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from streams_app.demo.write_side import WriteSideEvent
from streams_app.fold import Fold
from streams_app.folding.reading.reader import EventReader, decode_all
from streams_app.formatting import shown
from streams_app.settings import Limits

MAX_SHOWN: Final = 12


def fault_of(lines: Sequence[bytes], fold: Fold, time_fields: Sequence[str]) -> str | None:
    """Return why none of the first events of a file can be folded; None if some can be folded.

    Args:
        lines: The first lines of a file.
        fold: The fold.
        time_fields: Fields that are never proposed as a group key.

    Returns:
        A sentence; if fields are missing, it lists the fields of the events, and options to try.
    """
    if not lines:
        return "there is no event in it"
    raws = [WriteSideEvent(offset, 0, None, line) for offset, line in zip(count(), lines, strict=False)]
    limits = Limits()
    decoded = decode_all(raws, limits)
    rejected = EventReader(fold, limits).read(raws, decoded).rejected
    if len(rejected) < len(lines):
        return None
    events = [value for value in decoded if isinstance(value, dict)]
    if not events:
        return f"none of its first {len(lines)} lines is a JSON object"
    fields = list(dict.fromkeys(name for event in events for name in event))
    roots = [str(path).partition(".")[0] for path in fold.group_fields]
    changed_root = fold.changed_field.partition(".")[0]
    missing = [name for name in (*roots, changed_root) if name not in fields]
    if not missing:
        return f"none of its first {len(lines)} events can be folded: {rejected[0].reason}: {rejected[0].detail}"
    has_group = not set(roots) & set(missing)
    has_changed = changed_root not in missing
    group = str(fold.group_key) if has_group else _first(events, fields, (str, int), [*time_fields, fold.changed_field])
    changed = fold.changed_field if has_changed else _first(events, fields, (dict, list), roots)
    listed = ", ".join(map(shown, fields[:MAX_SHOWN])) + (", ..." if len(fields) > MAX_SHOWN else "")
    return (
        f"no field {' and no field '.join(map(shown, missing))}; your fields are {listed}: "
        f"try --group-key {group or 'FIELD'} --changed {changed or 'FIELD'}"
    )


def _first(events: Sequence[dict[str, Any]], fields: Sequence[str], kinds: tuple[type, ...], others: Sequence[str]) -> str | None:
    """Return the first field, except ``others``, whose values all have one of the types ``kinds``; None if there is none."""
    for name in fields:
        values = [event[name] for event in events if name in event]
        if name not in others and name == shown(name) and " " not in name and all(type(value) in kinds for value in values):
            return name
    return None
