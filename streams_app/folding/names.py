"""Sets of changed names, without values: there are few different ones, and thousands of groups in memory share them (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CACHED_NAMES: Final = 32
CACHED_SETS: Final = 500
"""Sets of at most so many names are remembered."""

_known: dict[tuple[str, ...], dict[str, bytes]] = {}


def without_values(names: Iterable[str]) -> dict[str, bytes]:
    """The names, in the order given, each with an empty value; shared, never to be changed."""
    key = tuple(names)
    found = _known.get(key)
    if found is None:
        found = dict.fromkeys(key, b"")
        if len(key) <= CACHED_NAMES:
            if len(_known) >= CACHED_SETS:
                _known.clear()
            _known[key] = found
    return found
