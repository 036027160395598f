"""Tables that fit the terminal: keys are cut in the middle, columns are left out, numbers are never cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streams_app.formatting import cut

GAP: Final = 2
ENDLESS: Final = 100_000
"""Where the output is no terminal, no column is left out: somebody looks for a key in it."""

MAX_CELL: Final = 120
"""Width of a cell there: ``--json`` has all of a longer key."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column; the most important one is leftmost.

    Attributes:
        title: Header of the column.
        cells: Printable text, one for each row.
        least: Minimum width to which its cells may be cut; 0: they are never cut, like numbers and times.
        rank: Columns are left out for lack of room in the order of their ranks, the highest first; 0: never.
        is_known: Whether the reader knows its content, because all cells are equal; it is left out before any cell is cut.
    """

    title: str
    cells: Sequence[str]
    least: int = 0
    rank: int = 0
    is_known: bool = False

    @property
    def width(self) -> int:
        """Width of its header or of its widest cell."""
        return max(map(cell_len, (self.title, *self.cells)))

    @property
    def least_width(self) -> int:
        """Width below which the column is useless."""
        return min(self.width, max(self.least, cell_len(self.title))) if self.least else self.width


def print_fitted(columns: Sequence[Column]) -> None:
    """Print a table at most as wide as the terminal; without a terminal, print all of it."""
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=ENDLESS)
    if not terminal.is_terminal:
        columns = [replace(column, cells=[cut(cell, MAX_CELL) for cell in column.cells]) for column in columns]
    console.print(fitted(columns, console.width))


def fitted(columns: Sequence[Column], width: int) -> Table:
    """Return a table of at most this width, if that is possible."""
    chosen = _chosen(list(columns), width)
    widths = _widths(chosen, width)
    table = Table(box=None, pad_edge=False)
    for column in chosen:
        table.add_column(Text(column.title), justify="left" if column.least else "right", no_wrap=True)
    # Text, not a string: a string would be read as markup.
    cells = [[Text(cut(cell, limit)) for cell in column.cells] for column, limit in zip(chosen, widths, strict=True)]
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table


def _chosen(columns: list[Column], width: int) -> list[Column]:
    """Return the columns to show: all of them; or those not known to the reader; or those that fit once texts are cut."""
    if _total([column.width for column in columns]) <= width:
        return columns
    columns = [column for column in columns if not column.is_known]
    while _total([column.least_width for column in columns]) > width and any(column.rank for column in columns):
        columns.remove(max(columns, key=lambda column: column.rank))
    return columns


def _widths(columns: list[Column], width: int) -> list[int]:
    """Return the widths of the columns; they shrink from the right, so the key shrinks last."""
    widths = [column.width for column in columns]
    for position in range(len(columns) - 1, -1, -1):
        excess = max(0, _total(widths) - width)
        widths[position] -= min(excess, widths[position] - columns[position].least_width)
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
