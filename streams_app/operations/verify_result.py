"""The result of a comparison of a read store with its value source, as numbers and text (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from streams_app.formatting import counted


@dataclass(slots=True)
class VerifyResult:
    """Result of the comparison of a read store with its value source.

    Attributes:
        cells: Number of cells of the store that were compared with the source.
        records: Number of folded records whose cells were looked up in the store.
        differences: Number of cells that were reported, because they differ.
        repaired: Number of differing cells that were corrected.
        on_their_way: Number of cells that differ and were not reported, because they are still changing or their group is open.
        behind: Number of offsets that the store has not applied, because it makes no progress; their records may explain
            differences. 0: the store is up to date.
        rejected: Number of records that were skipped, because they are not folded records.
        open_unknown: Why the open groups are unknown; "": they are known.
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
    if done.differences and done.open_unknown:
        lines.append(f"differences may belong to groups that are still open, which cannot be checked: {done.open_unknown}")
    return lines


def behind_text(done: VerifyResult, store: str) -> str:
    """Return the message about a store that is behind and makes no progress."""
    return (
        f"read store {store} is {counted(done.behind, 'record')} behind and stands still: what they announce is not in it, and "
        "differences may be theirs; is its worker running, and what does its log say of the read store?"
    )
