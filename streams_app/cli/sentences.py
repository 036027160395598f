"""Lays out a verdict and labelled facts as lines of text (pure)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Final

WIDEST: Final = 120
"""Maximum width of the text in columns, because longer lines are hard to read."""

LABEL: Final = 8


def lay_out(verdict: str, facts: Mapping[str, str], width: int) -> str:
    """Return a verdict and the facts, each after its label, wrapped to ``width`` columns; facts without text are omitted."""
    columns = max(2 * LABEL, min(width, WIDEST))
    return "\n".join(
        [
            *_wrapped(verdict, columns, ""),
            *(line for label, text in facts.items() if text for line in _wrapped(text, columns, f"  {label}")),
        ]
    )


def _wrapped(text: str, columns: int, label: str) -> Iterable[str]:
    begin = f"{label:<{LABEL + 2}}" if label else ""
    return textwrap.wrap(text, columns, initial_indent=begin, subsequent_indent=" " * len(begin), break_on_hyphens=False)
