"""Reads what some folds need of an event besides its group and changed names (pure).

This is the JSON to keep, the quiet period that the event sets, the id of the event, and whether the event closes its group.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final

import orjson

from streams_app.codec import at_path
from streams_app.depth import TooDeepError, check_json_depth
from streams_app.envelopes import COLUMNS, HEADER
from streams_app.errors import BadEventError
from streams_app.exact_json import encode
from streams_app.fold import Fold
from streams_app.folding.core.kept_events import size_of_event
from streams_app.formatting import duration_text, milliseconds, parse_duration
from streams_app.quiet_period import QuietPeriod
from streams_app.unrepresentable import require_representable

SHALLOW: Final = 200
"""With at most this many brackets, the nesting needs no check, see :data:`.MAX_DEPTH`."""

ID_BYTES: Final = 16
"""Size of the digest of an id: any two of a billion ids have the same one with a chance of 1 in 10^21."""

JSON_SPACES: Final = b" \t\r\n"


def kept_event(fold: Fold) -> Callable[[bytes | None, Any], bytes]:
    """Return a function that gives the JSON to keep of an event, for a fold with ``keep = "events"``.

    The function takes the value of a record, and the event that was decoded from it. A whole JSON event is kept byte by byte,
    without surrounding spaces; an event with more than :data:`SHALLOW` brackets is encoded anew, which checks its nesting. For a
    change event of Debezium, the row is kept, and for a CloudEvent, the data is kept, both with added fields of the envelope. If
    ``fields`` are selected, only those that are neither missing nor null are kept.

    The function raises BadEventError with the reason ``too-large`` if the event alone exceeds ``max_bytes``. If JSON cannot
    represent the event, or the event is nested too deeply, the reason is ``user-error`` for a fold with functions of the user, else
    ``no-value``.
    """
    paths = [(name, name.split(".")) for name in fold.fields]
    is_verbatim = not paths and fold.decode is None and fold.format == "json"

    def kept(value: bytes | None, event: Any) -> bytes:
        if paths:
            found = {name: at_path(event, path) for name, path in paths}
            json = _json({name: part for name, part in found.items() if part is not None}, fold)
        elif is_verbatim and value is not None and value.count(b"[") + value.count(b"{") <= SHALLOW:
            json = value.strip(JSON_SPACES)
        else:
            whole = {name: part for name, part in event.items() if name != COLUMNS} if type(event) is dict else event
            json = _json(whole, fold)
        if size_of_event(json) > fold.max_bytes:
            raise BadEventError("too-large", f"the event alone has {size_of_event(json)} bytes, max_bytes is {fold.max_bytes}")
        return json

    return kept


def _json(event: Any, fold: Fold) -> bytes:
    try:
        json = encode(event)
        check_json_depth(json, event)
    except (orjson.JSONEncodeError, TooDeepError) as error:
        raise BadEventError("user-error" if fold.is_by_functions else "no-value", f"the event cannot be kept: {error}") from error
    return json


def quiet_rule(fold: Fold) -> Callable[[Any], int] | None:
    """Return a function that reads the quiet period of an event; None if events of the fold do not set one.

    The function returns by how many ms the quiet period of an event is shorter than the longest one of the fold. If the event has
    no duration, or null, the default counts. The function raises BadEventError with the reason ``no-value`` if the value is not a
    duration from 1 ms to the longest quiet period.
    """
    rule = fold.quiet_period
    if not isinstance(rule, QuietPeriod):
        return None
    max_ms, default_ms = fold.quiet_period_ms, fold.default_quiet_period_ms
    own = rule.field if callable(rule.field) else None
    path, label = ([], "quiet_period") if callable(rule.field) else (rule.field.split("."), repr(rule.field))

    def shorter_ms(event: Any) -> int:
        wanted = at_path(event, path) if own is None else own(event)
        if wanted is None:
            return max_ms - default_ms
        try:
            is_number = type(wanted) is int or type(wanted) is float
            quiet_ms = round(wanted * 1000) if is_number else milliseconds(parse_duration(wanted))
        except (TypeError, ValueError, OverflowError) as error:
            raise BadEventError("no-value", f"{label} is not a duration: {error}") from error
        if not 1 <= quiet_ms <= max_ms:
            raise BadEventError("no-value", f"{label} is {wanted!r}, and must be from 1ms to {duration_text(max_ms)}")
        return max_ms - quiet_ms

    return shorter_ms


def id_rule(fold: Fold, max_bytes: int) -> Callable[[Any, Any], bytes] | None:
    """Return a function that digests the id of an event, for a fold with ``dedupe_by``; None for other folds.

    The function takes a record, and the event that was decoded from it. An id is a string or an integer, or the bytes of a header;
    ``1`` and ``"1"`` are two ids. The digest also covers the setting, so that ids of another field are other ids after a change.
    The function raises BadEventError with the reason ``no-id`` if there is no id, or an empty one, and ``too-large`` if it has more
    than ``max_bytes``.
    """
    rule = fold.dedupe_by
    if rule is None:
        return None
    label = "dedupe_by" if callable(rule) else repr(rule)
    begun = blake2b(label.encode("utf-8", "surrogatepass") + b"\0", digest_size=ID_BYTES)
    read = _id_reader(rule)

    def digest(record: Any, event: Any) -> bytes:
        found = _id_bytes(read(record, event), label, max_bytes)
        if len(found) > max_bytes + 1:
            raise BadEventError("too-large", f"the id in {label} has more than {max_bytes} bytes")
        hashed = begun.copy()
        hashed.update(found)
        return hashed.digest()

    return digest


def _id_reader(rule: str | Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    if callable(rule):
        return lambda record, event: rule(event)
    if rule.startswith(HEADER):
        name = rule.removeprefix(HEADER)
        return lambda record, event: next((value for key, value in reversed(record.headers) if key == name), None)
    path = rule.split(".")
    return lambda record, event: at_path(event, path)


def _id_bytes(value: Any, label: str, max_bytes: int) -> bytes:
    require_representable(value, label)
    if isinstance(value, str) and value:
        try:
            return b"s" + str.encode(value)
        except UnicodeEncodeError as error:
            raise BadEventError("no-id", f"{label} is text that UTF-8 does not have") from error
    if isinstance(value, bytes) and value:
        return b"s" + value
    if type(value) is int:
        size = value.bit_length() // 8 + 1
        return b"i" + (value.to_bytes(size, "big", signed=True) if size <= max_bytes else bytes(size))
    found = "missing or null" if value is None else "empty" if value in ("", b"") else f"a {type(value).__name__}"
    raise BadEventError("no-id", f"{label} is {found}, not a string or an integer")


def closing_rule(fold: Fold) -> Callable[[Any], bool] | None:
    """Return a function that decides whether an event closes its group; None if the fold has no ``close_when``.

    Numbers are equal if their values are, so 1 equals 1.0, but no number equals a boolean. A field that is missing, null, an array
    or an object never closes a group.
    """
    rule = fold.close_when
    if rule is None or callable(rule):
        return rule
    wanted = [(path.split("."), {(type(value) is bool, value) for value in values}) for path, values in rule.items()]

    def closes(event: Any) -> bool:
        for path, values in wanted:
            value = at_path(event, path)
            if type(value) in (str, bool, int, float, Decimal) and (type(value) is bool, value) in values:
                return True
        return False

    return closes
