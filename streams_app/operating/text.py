"""Text from outside on one line of a terminal (pure): group keys, changed names, values of events.

Whoever produces an event chooses its keys and names: line breaks, escape sequences of terminals, marks that turn the direction of
writing. Every command shows such text by one of these functions and hands it to rich as ``Text``, never as markup.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from rich.cells import cell_len

from streams_app.codec import TEXT_MARK, canonical_bytes

CUT: Final = "…"

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ASTRAL: Final = 0x10000


def escaped(text: str) -> str:
    """Free text on one line: what is not printable is written as JSON escapes it, everything else as it is.

    It is meant for values of events and words of errors: two different texts may look the same, and JSON stays JSON.
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def shown(text: str) -> str:
    """A name or a key on one line; two different ones never look the same.

    A text that could mislead is written as a JSON string in quotes: one that is empty, begins with a quote, holds what is not
    printable, or has spaces at an end or side by side.
    """
    plain = text.isprintable() and text and not text.startswith('"') and "  " not in f" {text} "
    return text if plain else quoted(text)


def quoted(text: str) -> str:
    """A JSON string whose characters are all printable."""
    return '"' + escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def shown_group(member: bytes) -> str:
    """A group as :func:`shown_key` shows it.

    Args:
        member: Its member in Redis.
    """
    return shown_key(group_value(member))


def shown_key(key: Any) -> str:
    """A group key as people read it, and as ``groups explain`` and ``groups flush`` take it.

    A text that would be read as a number, a boolean or a list has quotes: ``1`` is a number, ``"1"`` a text.

    Args:
        key: What :func:`group_value` returns.
    """
    if type(key) is not str:
        return escaped(orjson.dumps(key).decode())
    return shown(key) if is_only_text(key) else quoted(key)


def group_value(member: bytes) -> Any:
    """A group key for programs: a JSON value of the type it has in its events."""
    text = canonical_bytes(member).decode("utf-8", "backslashreplace")
    return text if member[:1] == TEXT_MARK else orjson.loads(text)


def is_only_text(text: str) -> bool:
    """Whether what is typed so can be no number, boolean, list or quoted text."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return True
    return value is None or type(value) is dict  # no group is called so


def json_line(row: Any) -> str:
    """One line of JSON for programs which a terminal survives, too."""
    return escaped(orjson.dumps(row).decode())


def cut(text: str, width: int) -> str:
    """A text of at most ``width`` cells, shortened in its middle: beginnings and ends tell keys apart."""
    if cell_len(text) <= width:
        return text
    tail_width = max(0, width - 1) // 2
    head = _first_cells(text, max(0, width - 1 - tail_width))
    tail = _first_cells(text[::-1], tail_width)[::-1]
    return f"{head}{CUT}{tail}" if width > 0 else ""


def _first_cells(text: str, width: int) -> str:
    used = 0
    for position, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:position]
    return text


def _escape(char: str) -> str:
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if code < _ASTRAL:
        return f"\\u{code:04x}"
    high, low = divmod(code - _ASTRAL, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
