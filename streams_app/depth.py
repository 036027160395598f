"""The limit of nesting of values that come from outside, which is reached long before the stack of the process is full (pure).

Decoders without a limit of their own, such as that of Avro, call themselves for each level, and end the process when the stack is
full. orjson reads JSON of at most 1,024 levels and writes at most 254; msgspec and Python's own functions stop at Python's limit of
recursion, some 1,000 levels.
"""

from __future__ import annotations

from typing import Any, Final

MAX_DEPTH: Final = 240
"""Maximum number of levels of a value that is decoded or encoded by a schema, or kept. Records and requests add some levels."""


class TooDeepError(ValueError):
    """A value has more levels than :data:`MAX_DEPTH`."""

    def __init__(self) -> None:
        super().__init__(f"it is nested more than {MAX_DEPTH} levels deep")


def check_depth(value: Any) -> None:
    """Check that objects and arrays in a decoded value are nested at most :data:`MAX_DEPTH` levels deep; otherwise TooDeepError."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [part for holder in level for part in _parts_of(holder)]
        if not level:
            return
    raise TooDeepError


def check_json_depth(json: bytes, value: Any) -> None:
    """Check the depth of a value of which the JSON is known, which usually takes no more than counting its brackets."""
    if json.count(b"[") + json.count(b"{") > MAX_DEPTH:
        check_depth(value)


def _parts_of(holder: Any) -> Any:
    if isinstance(holder, dict):
        return holder.values()
    return holder if isinstance(holder, list | tuple) else ()
