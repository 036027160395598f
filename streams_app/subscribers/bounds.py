"""How much of one partition is held in memory at most, and how much a record takes (pure)."""

from __future__ import annotations

from typing import Final

MOST_UNFINISHED: Final = 10_000
MOST_UNFINISHED_BYTES: Final = 64 * 1024 * 1024
"""With so many unfinished events, or so many bytes of them, the reader of the partition pauses; until then one that fails delays no
other."""
