"""Lines drawn with characters: eight dots a character where the terminal has them, else one (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_BRAILLE: Final = 0x2800
_BITS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot within a character, by its column and its row from above."""


class Canvas:
    """A rectangle of characters; positions are shares of its width and height, (0, 0) is below on the left."""

    def __init__(self, width: int, height: int, *, is_fine: bool) -> None:
        """Nothing is drawn yet.

        Args:
            width: Characters.
            height: Lines.
            is_fine: The terminal has the characters of braille.
        """
        self.width = width
        self.height = height
        self._columns, self._rows = (2, 4) if is_fine else (1, 1)
        self._is_fine = is_fine
        self._bits = [[0] * width for _ in range(height)]
        self._marks: dict[tuple[int, int], str] = {}

    def line(self, points: Sequence[tuple[float, float]]) -> None:
        """Connects points from left to right."""
        for (from_x, from_y), (to_x, to_y) in pairwise(points):
            steps = 1 + int(max(abs(to_x - from_x) * self.width * self._columns, abs(to_y - from_y) * self.height * self._rows))
            for step in range(steps + 1):
                part = step / steps
                self._dot(from_x + (to_x - from_x) * part, from_y + (to_y - from_y) * part)
        if len(points) == 1:
            self._dot(*points[0])

    def mark(self, x: float, y: float, char: str) -> None:
        """Puts a character over the line; the first one at a place stays."""
        self._marks.setdefault((self.row_of(y), self.column_of(x)), char)

    def column_of(self, x: float) -> int:
        """The column of characters at a position."""
        return _scaled(x, self.width * self._columns) // self._columns

    def row_of(self, y: float) -> int:
        """The line at a position, from above."""
        return self._from_above(y) // self._rows

    def rows(self) -> list[str]:
        """The lines, from above, each as wide as the canvas."""
        return [
            "".join(self._marks.get((row, column)) or self._char(bits) for column, bits in enumerate(line))
            for row, line in enumerate(self._bits)
        ]

    def _from_above(self, y: float) -> int:
        """The row of dots at a position."""
        return self.height * self._rows - 1 - _scaled(y, self.height * self._rows)

    def _dot(self, x: float, y: float) -> None:
        column, row = _scaled(x, self.width * self._columns), self._from_above(y)
        self._bits[row // self._rows][column // self._columns] |= _BITS[column % self._columns][row % self._rows]

    def _char(self, bits: int) -> str:
        if not bits:
            return " "
        return chr(_BRAILLE + bits) if self._is_fine else "."


def _scaled(share: float, count: int) -> int:
    return min(count - 1, max(0, round(share * (count - 1))))
