"""One dead letter, and which letters a command takes (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from streams_app.delivery.rejected_event import NOT_KEPT
from streams_app.events.headers import Headers, source_of
from streams_app.folding.reading.replay_routing import replay_target
from streams_app.reasons import FINISHED_LATE, RECORD_TOO_LARGE, Reason
from streams_app.subscribers.original_position import RECEIVED_HEADER

RECEIPT_HEADER: Final = "streams-app-put-back"
"""Of a record in a dead-letter topic that says what was put back, and for whom; its value has a digest of each event, in lines."""
PREVIEW_BYTES: Final = 120
DIGEST_BYTES: Final = 12

_DROPPED_IN_DETAIL: Final = re.compile(r"(value|key) of \d+ bytes not kept$")


@dataclass(frozen=True, slots=True)
class ListedDeadLetter:
    """One dead letter.

    Attributes:
        partition: Partition of the dead-letter topic.
        offset: Offset of the letter in it.
        key: Record key of the event, as received.
        value: Value of the event, as received.
        timestamp_ms: When the letter was written.
        headers: Header → its text.
        received: The headers of the event itself, as received; only letters of subscribers keep them.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: dict[str, str]
    received: Headers = ()

    @property
    def reason(self) -> str:
        """Why the event was refused; empty for a receipt."""
        return self.headers.get("reason", "")

    @property
    def is_event(self) -> bool:
        """False for a folded record that was too large for the broker."""
        return self.reason != RECORD_TOO_LARGE

    @property
    def is_late(self) -> bool:
        """Whether it only says that an event has ended well after all, which was interrupted or had timed out."""
        return self.reason == FINISHED_LATE

    @property
    def source(self) -> str:
        """Topic, partition and offset from which the event was read."""
        return "/".join(self.headers.get(name, "") for name in ("source-topic", "source-partition", "source-offset"))

    @property
    def event_source(self) -> str:
        """The ``ce_source`` of the event of a subscriber, within which its id is unique; empty where it names none."""
        return source_of(self.received).decode("utf-8", "backslashreplace")

    @property
    def identity(self) -> str:
        """The same of a letter that was sent twice, as its worker died before it knew that the broker has it."""
        return self.headers.get("letter-id") or f"{self.partition}/{self.offset}"

    @property
    def position(self) -> tuple[int, int] | None:
        """Partition and offset of the event in its source; None where the headers do not tell."""
        partition, offset = self.headers.get("source-partition", ""), self.headers.get("source-offset", "")
        return (int(partition), int(offset)) if partition.isdecimal() and offset.isdecimal() else None

    @property
    def dropped_part(self) -> str:
        """What of the event was not kept, as it was too large: ``value``, ``key``, ``headers`` or nothing."""
        marked = next((what for what, header in NOT_KEPT.items() if header in self.headers), "")
        if marked or "app-id" in self.headers:
            return marked
        told = _DROPPED_IN_DETAIL.search(self.headers.get("detail", ""))  # written by a version without that header
        return told[1] if told else ""

    def receipt(self, address: str) -> list[str]:
        """Digests of events that were put back for somebody; none where this is no receipt of that."""
        is_one = self.headers.get(RECEIPT_HEADER) == address
        return (self.value or b"").decode("ascii", "replace").split() if is_one else []

    def digest(self) -> str:
        """Names the event of a letter: a letter that was written twice, as its worker died in between, has one digest.

        It is made of the content, too: a topic that was made again has other events at the same offsets.
        """
        return blake2b(repr((self.source, self.key, self.value)).encode(), digest_size=DIGEST_BYTES).hexdigest()

    def row(self, most_bytes: int | None = None) -> dict[str, Any]:
        """The letter as one row for people and programs.

        Args:
            most_bytes: A longer value is cut, and ends with …; None: it is whole.
        """
        given = self.value or b""
        value = given[:most_bytes].decode("utf-8", "backslashreplace")
        if most_bytes is not None and len(given) > most_bytes:
            value += "…"
        key = None if self.key is None else self.key.decode("utf-8", "backslashreplace")
        received = {"received": header_texts(self.received)} if self.received else {}
        return {"partition": self.partition, "offset": self.offset, **self.headers, **received, "key": key, "value": value}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which letters a command takes.

    Attributes:
        app_id: Name of the application that refused the events; a letter that names none is taken for any.
        fold: Name that the fold, the read store or the subscriber had when it refused them.
        reasons: Only letters with these reasons; empty: with any.
        positions: Only events at these partitions and offsets of the source; empty: at any.
        keys: Only events with these record keys; empty: with any.
        kind: The header under which that name stands: ``fold``, ``store``, ``subscriber`` or ``view``.
        event_ids: Only events with these ids; empty: with any.
        event_sources: Only events of these sources; empty: of any.
        since_ms: Only letters that are not older.
        renamed: Name that it has now, where that is another one.
    """

    app_id: str
    fold: str
    reasons: frozenset[Reason] = frozenset()
    positions: frozenset[tuple[int, int]] = frozenset()
    keys: frozenset[bytes] = frozenset()
    kind: str = "fold"
    event_ids: frozenset[str] = frozenset()
    event_sources: frozenset[str] = frozenset()
    since_ms: int = 0
    renamed: str = ""

    @property
    def address(self) -> str:
        """For whom its letters are put back."""
        return replay_target(self.app_id, self.renamed or self.fold).decode()

    @property
    def options(self) -> list[str]:
        """The options of a command by which it takes fewer letters than all of this fold."""
        return [
            option
            for option, given in (
                ("--key", self.keys), ("--offset", self.positions), ("--reason", self.reasons), ("--event-id", self.event_ids),
                ("--event-source", self.event_sources), ("--since", self.since_ms),
            )
            if given
        ]  # fmt: skip

    def concerns(self, dead_letter: ListedDeadLetter) -> bool:
        """Whether a letter is of this fold at all."""
        headers = dead_letter.headers
        return headers.get(self.kind) == self.fold and headers.get("app-id", self.app_id) == self.app_id

    def matches(self, dead_letter: ListedDeadLetter) -> bool:
        """Whether a letter of this fold is one of those that were asked for."""
        return (
            (not self.reasons or dead_letter.reason in self.reasons)
            and (not self.positions or dead_letter.position in self.positions)
            and (not self.keys or dead_letter.key in self.keys)
            and (not self.event_ids or dead_letter.headers.get("event-id") in self.event_ids)
            and (not self.event_sources or dead_letter.event_source in self.event_sources)
            and dead_letter.timestamp_ms >= self.since_ms
        )


def header_texts(headers: Headers) -> dict[str, str]:
    """Headers as people read them; of those with one name the last."""
    return {name: (value or b"").decode("utf-8", "backslashreplace") for name, value in headers}


def split_headers(headers: Headers) -> tuple[dict[str, str], Headers]:
    """The headers of a letter itself, and those that its event had."""
    at = next((at for at, (name, _) in enumerate(headers) if name == RECEIVED_HEADER), len(headers))
    told = header_texts(headers[at : at + 1]).get(RECEIVED_HEADER, "")
    behind = at + 1 + (int(told) if told.isdecimal() else 0)
    return header_texts([*headers[:at], *headers[behind:]]), headers[at + 1 : behind]
