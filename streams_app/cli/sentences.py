"""Lays out a verdict and labelled facts as lines of text (pure)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Final

WIDEST: Final = 120
"""Maximum width of the text in columns, because longer lines are hard to read."""

LABEL: Final = 8
_COMMAND: Final = re.compile(r"`[^`]*`")
_UNBROKEN: Final = "\N{NO-BREAK SPACE}"


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


def hanging(text: str, indent: int, width: int) -> str:
    """Return a text that begins at column ``indent``, wrapped to ``width`` columns.

    Lines break between words, and a command in backticks stays on one line, so that it can be copied.
    """
    kept = _COMMAND.sub(lambda found: found[0].replace(" ", _UNBROKEN), text)
    lines = textwrap.wrap(
        kept, max(2 * indent, width) - indent, break_on_hyphens=False, break_long_words=False, replace_whitespace=False
    )
    return f"\n{' ' * indent}".join(lines).replace(_UNBROKEN, " ")
