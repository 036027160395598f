"""What a comparison of a read store with its source has found, in numbers and in words (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from streams_app.formatting import counted


@dataclass(slots=True)
class Verified:
    """What was found.

    Attributes:
        cells: Cells of the store that were compared with the source.
        records: Folded records whose cells were looked up in the store.
        differences: Cells that differ.
        repaired: Of them, those that were written.
        on_their_way: Cells that differ and are still changing.
        behind: Records that the store has not taken while it stands still; differences may be theirs.
        rejected: Records that are not folded records.
        open_unknown: Why open groups could not be told; "": they could.
        is_cut: There may be more differences.
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


def told(done: Verified, store: str) -> list[str]:
    """What the operator is told, one sentence each."""
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
    if done.differences and done.open_unknown:
        lines.append(f"differences may be of groups that are still open, which cannot be told: {done.open_unknown}")
    return lines


def behind_text(done: Verified, store: str) -> str:
    """What is said of a store that is behind and stands still."""
    return (
        f"read store {store} is {counted(done.behind, 'record')} behind and stands still: what they announce is not in it, and "
        "differences may be theirs; is its worker running, and what does its log say of the read store?"
    )
