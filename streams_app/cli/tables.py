"""Tables that fit the terminal: keys are cut in the middle, columns may be omitted, and numbers are never cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streams_app.formatting import cut

SPACING: Final = 2
ENDLESS: Final = 100_000
"""Table width if the output is not a terminal. No column is omitted then, because a program may search the output."""

MAX_CELL: Final = 120
"""Maximum width of a cell if the output is not a terminal; ``--json`` prints longer keys in full."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table.

    Attributes:
        cells: Printable texts, one for each row.
        least: Minimum width to which cells may be cut. 0: cells are never cut, as for numbers and times.
        rank: If the table is too wide even with cut cells, the columns with the highest rank are omitted first. 0: the column is
            not omitted because of its rank.
        is_known: Whether all cells are equal. If the table is too wide, such a column is omitted before any cell is cut.
    """

    title: str
    cells: Sequence[str]
    least: int = 0
    rank: int = 0
    is_known: bool = False

    @property
    def width(self) -> int:
        return max(map(cell_len, (self.title, *self.cells)))

    @property
    def least_width(self) -> int:
        return min(self.width, max(self.least, cell_len(self.title))) if self.least else self.width


def print_fitted(columns: Sequence[Column]) -> None:
    """Print a table that fits the terminal. If the output is not a terminal, print all columns."""
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=ENDLESS)
    if not terminal.is_terminal:
        columns = [replace(column, cells=[cut(cell, MAX_CELL) for cell in column.cells]) for column in columns]
    console.print(fitted(columns, console.width))


def fitted(columns: Sequence[Column], width: int) -> Table:
    """Return a table for an output of ``width`` terminal cells.

    If the table is too wide, columns with ``is_known`` are omitted, and cells are cut. If that is not enough, columns are omitted
    by their ranks. The remaining columns may still be wider than ``width``.
    """
    chosen = _chosen(list(columns), width)
    widths = _widths(chosen, width)
    table = Table(box=None, pad_edge=False)
    for column in chosen:
        table.add_column(Text(column.title), justify="left" if column.least else "right", no_wrap=True)
    # Text, because rich reads a string as markup.
    cells = [[Text(cut(cell, limit)) for cell in column.cells] for column, limit in zip(chosen, widths, strict=True)]
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table


def _chosen(columns: list[Column], width: int) -> list[Column]:
    """Return the columns that fit. Columns with ``is_known`` are omitted first, then those with the highest ranks."""
    if _total([column.width for column in columns]) <= width:
        return columns
    columns = [column for column in columns if not column.is_known]
    while _total([column.least_width for column in columns]) > width and any(column.rank for column in columns):
        columns.remove(max(columns, key=lambda column: column.rank))
    return columns


def _widths(columns: list[Column], width: int) -> list[int]:
    """Return the width of each column. Columns shrink from the right, so that the key in the leftmost column shrinks last."""
    widths = [column.width for column in columns]
    for position in range(len(columns) - 1, -1, -1):
        excess = max(0, _total(widths) - width)
        widths[position] -= min(excess, widths[position] - columns[position].least_width)
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + SPACING * (len(widths) - 1)
