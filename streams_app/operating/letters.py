"""One dead letter, and which letters a command takes (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from streams_app.delivery.refused import NOT_KEPT
from streams_app.fold import Fold
from streams_app.reasons import RECORD_TOO_LARGE, Reason

PREVIEW_BYTES: Final = 120
DIGEST_BYTES: Final = 12

_TOLD_IN_DETAIL: Final = re.compile(r"(value|key) of \d+ bytes not kept$")


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter.

    Attributes:
        partition: Partition of the dead-letter topic.
        offset: Offset of the letter in it.
        key: Record key of the event, as received.
        value: Value of the event, as received.
        timestamp_ms: When the letter was written.
        headers: Header → its text.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: dict[str, str]

    @property
    def reason(self) -> str:
        """Why the event was refused; empty for a receipt."""
        return self.headers.get("reason", "")

    @property
    def is_event(self) -> bool:
        """False for a folded record that was too large for the broker."""
        return self.reason != RECORD_TOO_LARGE

    @property
    def place(self) -> tuple[int, int] | None:
        """Partition and offset of the event in its source; None where the headers do not tell."""
        partition, offset = self.headers.get("source-partition", ""), self.headers.get("source-offset", "")
        return (int(partition), int(offset)) if partition.isdecimal() and offset.isdecimal() else None

    @property
    def lost(self) -> str:
        """What of the event was not kept, as it was too large for this topic: ``value``, ``key`` or nothing."""
        marked = next((what for what, header in NOT_KEPT.items() if header in self.headers), "")
        if marked or "app-id" in self.headers:
            return marked
        told = _TOLD_IN_DETAIL.search(self.headers.get("detail", ""))  # written by a version without that header
        return told[1] if told else ""

    def digest(self) -> str:
        """Names the event of a letter: a letter that was written twice, as its worker died in between, has one digest.

        It is made of the content, too: a topic that was made again has other events at the same offsets.
        """
        place = "/".join(self.headers.get(name, "") for name in ("source-topic", "source-partition", "source-offset"))
        return blake2b(repr((place, self.key, self.value)).encode(), digest_size=DIGEST_BYTES).hexdigest()

    def row(self) -> dict[str, Any]:
        """The letter as one row for people and programs; the value is cut."""
        value = (self.value or b"")[:PREVIEW_BYTES].decode("utf-8", "backslashreplace")
        key = None if self.key is None else self.key.decode("utf-8", "backslashreplace")
        return {"partition": self.partition, "offset": self.offset, **self.headers, "key": key, "value": value}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which letters a command takes.

    Attributes:
        app_id: Name of the application that refused the events; a letter that names none is taken for any.
        fold: Name that the fold, or the read store, had when it refused them.
        reason: Only letters with this reason; None: with any.
        places: Only events at these partitions and offsets of the source; empty: at any.
        keys: Only events with these record keys; empty: with any.
        kind: The header under which that name stands: ``fold`` or ``store``.
    """

    app_id: str
    fold: str
    reason: Reason | None = None
    places: frozenset[tuple[int, int]] = frozenset()
    keys: frozenset[bytes] = frozenset()
    kind: str = "fold"

    def concerns(self, letter: Letter) -> bool:
        """Whether a letter is of this fold at all."""
        headers = letter.headers
        return headers.get(self.kind) == self.fold and headers.get("app-id", self.app_id) == self.app_id

    def takes(self, letter: Letter) -> bool:
        """Whether a letter of this fold is one of those that were asked for."""
        return (
            self.reason in (None, letter.reason)
            and (not self.places or letter.place in self.places)
            and (not self.keys or letter.key in self.keys)
        )


def obstacle(letter: Letter, fold: Fold, partitions: int) -> str:
    """Why a letter cannot be put back as the event it was, whatever the definition says; empty: it can.

    Args:
        letter: A letter of the fold's dead-letter topic.
        fold: The fold for which it would be put back.
        partitions: Number of partitions that the source of the fold has now.
    """
    topic = letter.headers.get("source-topic")
    if not letter.is_event:
        return "a folded record that was too large for the broker: no event"
    if letter.lost:
        return f"the {letter.lost} was too large for {fold.dead_letters} and was not kept: without it, it would be another event"
    if letter.place is None:
        return "its headers do not say where the event was"
    if topic != fold.source:
        return f"it is an event of {topic}, and the fold reads {fold.source} now"
    if letter.place[0] >= partitions:
        return f"partition {letter.place[0]} of {fold.source} does not exist any more"
    return ""
