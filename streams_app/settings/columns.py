"""The column of each changed name in a read store of ``shape = "groups"``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
"""Pattern of column names. SQL statements quote them, so their case is kept; PostgreSQL would truncate longer names."""

OWN_COLUMNS: Final = ("fold", "group_key", "versions", "updated_ms")
"""Columns that every table with a row per group has, in addition to the columns of changed names."""

EXAMPLE: Final = 'columns = { "click-rate" = "click_rate" }'

MAX_COLUMNS: Final = 1_000
"""Maximum number of columns: PostgreSQL allows 1 600 in a table, SQLite 2 000."""


def _by_name(given: Any) -> dict[str, str]:
    """Convert the setting, a mapping of names to columns or a list of names, to a mapping; a listed name is also its column.

    Raises:
        ValueError: The setting is neither, or a name is listed twice.
    """
    if isinstance(given, (list, tuple)) and all(isinstance(name, str) for name in given):
        if len(set(given)) != len(given):
            raise ValueError("a name stands there twice")
        return {name: name for name in given}
    if isinstance(given, dict) and all(isinstance(text, str) for pair in given.items() for text in pair):
        return given
    raise ValueError(f'expected a list of names, columns = ["likes"], or a table name = column, {EXAMPLE}')


def _checked(columns: dict[str, str]) -> dict[str, str]:
    """Validate the columns of all names; the error lists every fault.

    Two columns must not differ only in case, because SQLite, and SQL without quotes, treat them as the same column.
    """
    faults = []
    seen: dict[str, str] = {}
    for name, column in columns.items():
        if COLUMN.fullmatch(column) is None:
            faults.append(f"{column!r} is not a column (letters, digits and _; at most 63); give {name!r} another one: {EXAMPLE}")
        elif column.lower() in OWN_COLUMNS:
            faults.append(f"{column!r} is a column the table has for itself; give {name!r} another one: {EXAMPLE}")
        elif (other := seen.setdefault(column.lower(), name)) != name:
            faults.append(f"{other!r} and {name!r} have the same column {column!r}, as case does not count")
    if faults:
        raise ValueError("; ".join(faults))
    return columns


Columns = Annotated[dict[str, str], BeforeValidator(_by_name), AfterValidator(_checked), Field(max_length=MAX_COLUMNS)]
"""Column of each changed name. The setting may also be a list of names, if the columns have the same names."""
