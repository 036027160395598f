"""The result of a comparison of a read store with its value source, as numbers and text (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from streams_app.formatting import counted, escaped, json_line, shown
from streams_app.read_store.core.comparing import Difference
from streams_app.read_store.core.merge import Cell, StoredCell, Value
from streams_app.read_store.core.values import integer_fault, json_text

MAX_NAMES: Final = 1_000
"""Maximum number of names whose cells are counted."""

MAX_SHOWN: Final = 10
"""Maximum number of names whose share of NULL is shown."""


@dataclass(slots=True)
class VerifyResult:
    """Result of the comparison of a read store with its value source.

    Attributes:
        cells: Number of cells of the store that were compared with the source.
        records: Number of folded records whose cells were looked up in the store.
        on_their_way: Number of cells that differ and were not reported, because they are still changing or their group is open.
        behind: Number of offsets that the store has not applied, because it makes no progress; their records may explain
            differences. 0: the store is up to date.
        open_unknown: Why the open groups are unknown; "": they are known.
        nulls: Number of cells without a value, and of all cells, by fold and name; of the first 1000 names.
        is_cut: Whether the comparison stopped early, after too many differences.
    """

    cells: int = 0
    records: int = 0
    differences: int = 0
    repaired: int = 0
    on_their_way: int = 0
    behind: int = 0
    rejected: int = 0
    open_unknown: str = ""
    is_cut: bool = False
    nulls: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def count_nulls(self, stored: Mapping[Cell, StoredCell]) -> None:
        """Count cells of the store, with and without a value, by fold and name."""
        for cell, found in stored.items():
            name = (cell.fold, cell.name)
            if name in self.nulls or len(self.nulls) < MAX_NAMES:
                nulls, cells = self.nulls.get(name, (0, 0))
                self.nulls[name] = nulls + (found.value is None), cells + 1


def summary(done: VerifyResult, store: str) -> list[str]:
    """Describe the result of a comparison for an operator, one sentence per fact."""
    cells = f"{counted(done.cells, 'cell')} and " if done.cells else ""
    at_least = "at least " if done.is_cut else ""
    lines = [
        f"read store {store}: {cells}{counted(done.records, 'folded record')} compared, "
        f"{at_least}{counted(done.differences, 'difference') if done.differences else 'no differences'}"
    ]
    if done.on_their_way:
        lines.append(f"{counted(done.on_their_way, 'more cell')} differed and changed meanwhile, or the groups are still open")
    if done.repaired:
        lines.append(f"{done.repaired} repaired")
    if done.rejected:
        lines.append(f"{counted(done.rejected, 'record')} of the topics passed over: not folded records")
    lines += _null_lines(done)
    if done.differences and done.open_unknown:
        lines.append(f"differences may belong to groups that are still open, which cannot be checked: {done.open_unknown}")
    return lines


def _null_lines(done: VerifyResult) -> list[str]:
    """Describe the share of NULL by fold and name, the highest share first; nothing if no cell is NULL."""
    by_share = sorted(done.nulls.items(), key=lambda one: (-one[1][0] / one[1][1], one[0]))
    some = [(name, nulls, cells) for (_, name), (nulls, cells) in by_share if nulls]
    if not some:
        return []
    shares = ", ".join(f"{escaped(name)} {100 * nulls // cells} % ({nulls} of {cells})" for name, nulls, cells in some[:MAX_SHOWN])
    more = f" and {len(some) - MAX_SHOWN} more" if len(some) > MAX_SHOWN else ""
    lines = [f"NULL in the store: {shares}{more}"]
    if all(nulls == cells for nulls, cells in done.nulls.values()):
        lines.append(
            "the store has no value at all: if they were not deleted, the source returns other groups or names than records"
        )
    return lines


def behind_text(done: VerifyResult, store: str) -> str:
    """Return the message about a store that is behind and makes no progress."""
    return (
        f"read store {store} is {counted(done.behind, 'record')} behind and stands still: what they announce is not in it, and "
        "differences may be theirs; is its worker running, and what does its log say of the read store?"
    )


def repair_facts(done: VerifyResult, store: str) -> dict[str, Any]:
    """Return what the audit line of a repair says."""
    return {"store": store, "differences": done.differences, "repaired": done.repaired}


def difference_texts(one: Difference) -> list[str]:
    """Return group, name and kind of a difference, and the values in the store and in the source, for people."""
    stored = "-" if one.stored is None else cell_text(one.stored.value)
    return [shown(one.cell.group_key), shown(one.cell.name), one.kind.value, stored, one.why or cell_text(one.change.value)]


def cell_text(value: Value) -> str:
    """Return a value for people: as JSON, or ``-`` for NULL."""
    return "-" if value is None else escaped(_cell_json(value) or "")


def _cell_json(value: Value) -> str | None:
    """Return a value as JSON text, and None for NULL.

    A value that JSON or the stores cannot represent becomes a JSON string: a huge integer in hexadecimal, invalid text escaped.
    """
    if isinstance(value, int) and integer_fault(value):
        return json.dumps(hex(value))
    try:
        return json_text(value)
    except TypeError:  # a text with an unpaired surrogate
        return json.dumps(value)


def difference_json(found: Difference) -> str:
    """Return a difference as a JSON object in one line, for programs."""

    def fragment(value: Value) -> Any:
        text = _cell_json(value)
        return None if text is None else orjson.Fragment(str(text))  # orjson rejects subclasses of str

    row = {
        "fold": found.cell.fold, "group": found.cell.group_key, "name": found.cell.name, "what": found.kind.value,
        "store": None if found.stored is None else fragment(found.stored.value), "source": fragment(found.change.value),
        "store_version": None if found.stored is None else found.stored.version,
    }  # fmt: skip
    return json_line(row | ({"why": found.why} if found.why else {}))
