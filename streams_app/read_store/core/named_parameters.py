"""``:groups`` and ``:names`` in a query for PostgreSQL, which knows numbered parameters only (pure)."""

from __future__ import annotations

import re
from typing import Final

TOKENS: Final = re.compile(
    r"""
      '(?:[^']|'')*'                     # text
    | "(?:[^"]|"")*"                       # a name
    | --[^\n]* | /\*.*?\*/                 # comments; one within another is not understood
    | \$(?P<quote>\w*)\$.*?\$(?P=quote)\$ # text between dollars
    | ::                                   # a cast
    | :(?P<name>groups|names)\b
    """,
    re.VERBOSE | re.DOTALL,
)


def numbered(sql: str) -> tuple[str, list[str]]:
    """A query with ``$1::text[]`` and ``$2::text[]`` for the parameters it names.

    Returns:
        The query, and the names in the order of their numbers.
    """
    used: list[str] = []

    def replaced(token: re.Match[str]) -> str:
        name = token["name"]
        if name is None:
            return token[0]
        if name not in used:
            used.append(name)
        return f"${used.index(name) + 1}::text[]"

    return TOKENS.sub(replaced, sql), used
