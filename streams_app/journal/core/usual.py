"""A fast path that finds the journal keys of most records faster than :func:`.entry.row_of` (pure).

A key that the fast path finds is the key that :func:`.entry.row_of` would find. If the fast path finds no key, the caller has to
call :func:`.entry.row_of`, which returns the key, or the reason why there is none.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from streams_app.codec import TEXT_TAG, member_of
from streams_app.delivery.batch import SourceRecordWithHeaders
from streams_app.errors import BadEventError
from streams_app.exact_json import SHALLOW, SHALLOW_BYTES, is_depth_guarded, number_of
from streams_app.folding.reading.fast import is_plain_field
from streams_app.journal.core.entry import MAX_VALUE_BYTES, KeySettings, max_key_bytes
from streams_app.settings import Limits

_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, BadEventError)


class UsualKeys:
    """Finds the journal keys of most records faster: those that have no headers, and a value within the size limits.

    If the key is a field, only this field is decoded, and the other fields are only checked to be JSON.
    """

    def __init__(self, journal: KeySettings, limits: Limits) -> None:
        path = journal.key_fields[0] if len(journal.key_fields) == 1 else ""
        self._is_by_record_key = journal.is_by_record_key
        self._is_by_field = path != "" and is_plain_field(path)
        self._max_bytes = min(limits.value_bytes, MAX_VALUE_BYTES)
        self._max_shallow_bytes = self._max_bytes if is_depth_guarded() else min(SHALLOW_BYTES, self._max_bytes)
        self._max_key_bytes = max_key_bytes(journal, limits.key_bytes)
        event = msgspec.defstruct("Event", [("key", Any, None)], rename={"key": path or "key"}, gc=False)
        self._decode: Any = msgspec.json.Decoder(event, float_hook=number_of).decode

    def of(self, record: SourceRecordWithHeaders) -> bytes | None:
        """Return the key of a record; None if the fast path does not find it, so that :func:`.entry.row_of` must be called."""
        value = record.value
        if not value or record.headers or (len(value) > self._max_shallow_bytes and not self._is_shallow(value)):
            return None
        if self._is_by_field:
            try:
                found = self._decode(value).key
                key = TEXT_TAG + found.encode() if type(found) is str else member_of((found,))
                # Skipped fields are checked to be JSON, but not for valid UTF-8.
                if not value.isascii():
                    value.decode()
            except _ERRORS:
                return None
        else:
            key = (record.key or b"") if self._is_by_record_key else b""
        return key if 0 < len(key) <= self._max_key_bytes else None

    def _is_shallow(self, value: bytes) -> bool:
        """Return whether a large value can take the fast path: it is not too large, and not nested deeper than orjson allows."""
        is_flat = self._is_by_record_key or value.count(b"[") + value.count(b"{") <= SHALLOW
        return is_flat and len(value) <= self._max_bytes
