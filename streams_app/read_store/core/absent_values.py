"""Detects a source that has no value for anything that it is asked for (pure).

A requested pair without a row counts as deleted, and its value becomes NULL. A query that returns other groups or other names than
those in the records therefore fills a store with NULLs, although no request fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streams_app.formatting import counted, escaped
from streams_app.read_store.core.merge import CellChange

MIN_GROUPS: Final = 3
"""Number of groups without any value after which a fold is reported. Fewer may have been deleted."""


class AbsentValues:
    """Observes the answers of the source of one read store, and reports each fold once if none of its values exists."""

    def __init__(self) -> None:
        self._present: set[str] = set()
        self._groups: dict[str, set[str]] = {}

    def observe(self, changes: Sequence[CellChange]) -> str | None:
        """Observe the source's values for changes of one fold; return the message to be logged, or None if there is nothing new."""
        if not changes:
            return None
        fold = changes[0].cell.fold
        if any(change.value is not None or change.is_group_gone for change in changes):
            self._present.add(fold)
            self._groups.pop(fold, None)
        if fold in self._present:
            return None
        groups = self._groups.setdefault(fold, set())
        groups.update(change.cell.group_key for change in changes)
        if not other_names(changes) and len(groups) < MIN_GROUPS:
            return None
        self._present.add(fold)  # reported once
        del self._groups[fold]
        return absent_text(changes)


def other_names(changes: Sequence[CellChange]) -> list[str]:
    """Return the names that a query returned although they were not requested; empty if it also returned a requested one."""
    return sorted({name for change in changes for name in change.returned})


def absent_text(changes: Sequence[CellChange]) -> str:
    """Describe an answer without any value: the names that were requested, and those that were returned."""
    asked = sorted({change.cell.name for change in changes})
    groups = counted(len({change.cell.group_key for change in changes}), "group")
    text = f"the source returns no value for any name that was requested for {groups} ({_listed(asked)})"
    if others := other_names(changes):
        return f"{text}, but other names ({_listed(others)})"
    return text


def _listed(names: Sequence[str]) -> str:
    more = len(names) - 5
    return ", ".join(map(escaped, names[:5])) + (f" and {more} more" if more > 0 else "")
