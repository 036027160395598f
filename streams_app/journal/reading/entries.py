"""Entries and gaps, the items that readers of a journal receive (pure)."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from streams_app.codec import canonical_bytes, keys_typed, member_of
from streams_app.errors import BadEventError, ConfigurationError
from streams_app.journal.core.entry import UNKEYED, Row, max_key_bytes, record_key_of, too_large
from streams_app.settings import JournalSettings, Limits

Why = Literal["retention", "damaged", "removed", "unread"]

REASONS: Final[dict[str, str]] = {
    "retention": "the topic had removed them before a worker read them",
    "damaged": "Redis has evicted or damaged them",
    "removed": "the journal has removed them: keep, max_bytes, or journal drop",
    "unread": "no worker has read them yet, or Redis has lost them",
}
"""Explanation of each cause of a gap."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of a key, as a reader of the journal receives it.

    Attributes:
        cursor: The position after this entry in all partitions. If :meth:`.JournalReader.between` yields the entry, the position
            in the partition of the entry only.
        at_ms: Time of the record; -1 if it has none.
        value: Value as produced; None for a tombstone. If the value or the headers were too large to be stored, JSON with their
            size, see ``too_large``.
        headers: Pairs of name and value, as produced and in their order.
        partition: Partition of the source.
        offset: Offset in that partition.
        too_large: Size of value and headers in bytes if they were too large to be stored; otherwise None.
        decoded: Content of a value that is framed by a schema registry, as decoded JSON; None for other values.
        undecoded: Why a framed value could not be decoded; otherwise empty.
        key: Key of the record as produced; None if it has none, or if the journal has not stored it: it has more than 10 kB, or a
            former version of the worker stored the event, in a journal that is not by ``@key``.
        older_removed: Whether the partition begins after its first offset, so that older events of the key are removed, if there
            were any.
    """

    cursor: str
    at_ms: int
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int
    offset: int
    too_large: int | None = None
    decoded: Any = None
    undecoded: str = ""
    key: bytes | None = None
    older_removed: bool = False

    @classmethod
    def of(cls, row: Row, partition: int, cursor: str, is_by_record_key: bool = False, *, older_removed: bool = False) -> Entry:
        """Convert a stored row to an entry."""
        key, headers = record_key_of(row, is_by_record_key=is_by_record_key)
        return cls(
            cursor, row.time_ms, row.value, headers, partition, row.offset, too_large(row), key=key, older_removed=older_removed
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Return the entry as a JSON object. Bytes are given as text, or as ``{"base64": …}`` if they are not UTF-8."""
        found: dict[str, Any] = {
            "cursor": self.cursor,
            "partition": self.partition,
            "offset": self.offset,
            "at_ms": self.at_ms,
            "key": _text(self.key),
            "value": _text(self.value),
            "headers": [[name, _text(content)] for name, content in self.headers],
        }
        if self.decoded is not None:
            found["decoded"] = self.decoded
        if self.undecoded:
            found["undecoded"] = self.undecoded
        if self.older_removed:
            found["older_removed"] = True
        return found if self.too_large is None else {**found, "value": None, "headers": [], "too_large": self.too_large}


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of offsets that the journal does not have; events of the key may be missing.

    Attributes:
        first: First offset.
        last: Last offset.
        why: ``retention`` if the topic had removed the events before a worker read them; ``damaged`` if Redis has evicted or
            damaged them; ``removed`` if the journal has removed them. If :meth:`.JournalReader.between` yields the gap, also
            ``unread``: no worker has read the events yet, or Redis has lost them.
        partition: Partition of the source.
        cursor: The position after the gap in all partitions. If :meth:`.JournalReader.between` yields the gap, the position in the
            partition of the gap only.
    """

    first: int
    last: int
    why: str
    partition: int
    cursor: str

    def as_json(self) -> dict[str, Any]:
        """Return the gap as a JSON object."""
        return {"partition": self.partition, "first": self.first, "last": self.last, "why": self.why, "cursor": self.cursor}


def key_of(journal: JournalSettings, key: Any) -> bytes:
    """Encode a key as the journal stores it.

    Args:
        journal: Settings of the journal.
        key: A string, number or boolean as in the events, or a tuple or list of them if the key has several fields. With ``@key``,
            bytes or a string. None stands for events without a usable key.

    Raises:
        ConfigurationError: No event of this journal can have such a key.
    """
    if key is None:
        return UNKEYED
    if journal.is_by_record_key:
        if not isinstance(key, str | bytes) or not key:
            raise ConfigurationError([f"{journal.section} is by the record key: {key!r} must be bytes or a string, not empty"])
        return key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")
    scalars = tuple(key) if isinstance(key, tuple | list) else (key,)
    if len(scalars) != len(journal.key_fields):
        raise ConfigurationError([f"{journal.section} is by {', '.join(journal.key_fields)}: {key!r} must have as many parts"])
    try:
        return member_of(scalars, journal.key_fields)
    except BadEventError as error:
        raise ConfigurationError([f"{key!r} is not a key of {journal.section}: {error.detail}"]) from error


def keys_meant(journal: JournalSettings, typed: str) -> tuple[bytes, ...]:
    """Return the stored keys that a user may mean by a text: ``17`` may be a number or text, but ``"17"`` is text."""
    if journal.is_by_record_key:
        return (key_of(journal, typed),)
    return tuple(keys_typed(typed))


def key_fault(journal: JournalSettings, limits: Limits, keys: tuple[bytes, ...]) -> str:
    """Explain why the journal has no events under keys, because each is too large; otherwise return an empty text (pure)."""
    size = min(map(len, keys))
    if size <= max_key_bytes(journal, limits.key_bytes):
        return ""
    size -= 0 if journal.is_by_record_key else 1  # the type tag
    return f"events with a key of more than {limits.key_bytes} bytes (limits.key_bytes; this one has {size}) are kept without a key"


def key_text(journal: JournalSettings, key: bytes) -> Any:
    """Convert a stored key to a JSON value: the key as in events, or the text of a record key; None for events without a key."""
    if key == UNKEYED:
        return None
    text = (key if journal.is_by_record_key else canonical_bytes(key)).decode("utf-8", "backslashreplace")
    return text if journal.is_by_record_key or key[:1] == b"s" else orjson.loads(text)


def _text(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
