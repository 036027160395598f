"""A dead letter as read from its topic, and the filter by which a command selects dead letters (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from streams_app.delivery.rejected_event import NOT_KEPT
from streams_app.events.headers import Headers, source_of
from streams_app.folding.reading.replay_routing import replay_target
from streams_app.reasons import FINISHED_LATE, RECORD_TOO_LARGE, Reason
from streams_app.subscribers.declaration.replayed_event import RECEIVED_HEADER

RECEIPT_HEADER: Final = "streams-app-put-back"
"""Header of a receipt: a record in a dead-letter topic that lists the digests of replayed events, one digest per line. The value of
the header is the address of the component that received the events."""
PREVIEW_BYTES: Final = 120
DIGEST_BYTES: Final = 12

_DROPPED_IN_DETAIL: Final = re.compile(r"(value|key) of \d+ bytes not kept$")


@dataclass(frozen=True, slots=True)
class ListedDeadLetter:
    """A dead letter as read from its topic.

    Attributes:
        partition: Partition of the dead-letter topic.
        key: Record key of the event, as received.
        value: Value of the event, as received.
        timestamp_ms: Time at which the dead letter was written.
        headers: Headers of the dead letter, by name, as text.
        received: Headers of the event, as received. Only dead letters of subscribers have them.
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
        """The reason for the rejection of the event; empty if the record is no dead letter, but a receipt of a replay."""
        return self.headers.get("reason", "")

    @property
    def is_event(self) -> bool:
        """Whether the dead letter contains a rejected event. If not, it reports a folded record too large for the broker."""
        return self.reason != RECORD_TOO_LARGE

    @property
    def is_late(self) -> bool:
        """Whether this is only a report that an interrupted or timed-out event, which has a dead letter, finished after all."""
        return self.reason == FINISHED_LATE

    @property
    def source(self) -> str:
        """Position at which the event was read, as ``topic/partition/offset``."""
        return "/".join(self.headers.get(name, "") for name in ("source-topic", "source-partition", "source-offset"))

    @property
    def event_source(self) -> str:
        """The header ``ce_source`` of a subscriber's event, within which its event id is unique. Empty if the event has none."""
        return source_of(self.received).decode("utf-8", "backslashreplace")

    @property
    def identity(self) -> str:
        """Id that all duplicates of the dead letter have in common; a worker that dies before the acknowledgement leaves one."""
        return self.headers.get("letter-id") or f"{self.partition}/{self.offset}"

    @property
    def position(self) -> tuple[int, int] | None:
        """Partition and offset of the event in its source; None if the headers do not have them."""
        partition, offset = self.headers.get("source-partition", ""), self.headers.get("source-offset", "")
        return (int(partition), int(offset)) if partition.isdecimal() and offset.isdecimal() else None

    @property
    def dropped_part(self) -> str:
        """The part of the event that was dropped for its size: ``value``, ``key`` or ``headers``; empty if nothing was dropped."""
        marked = next((what for what, header in NOT_KEPT.items() if header in self.headers), "")
        if marked or "app-id" in self.headers:
            return marked
        found = _DROPPED_IN_DETAIL.search(self.headers.get("detail", ""))  # older versions did not write the header
        return found[1] if found else ""

    def receipt(self, address: str) -> list[str]:
        """Return the digests of the events that were replayed to ``address``, if this is a receipt of that; otherwise nothing."""
        is_one = self.headers.get(RECEIPT_HEADER) == address
        return (self.value or b"").decode("ascii", "replace").split() if is_one else []

    def digest(self) -> str:
        """Return a digest of the event. It covers position and content: a recreated topic has other events at the same offsets."""
        return blake2b(repr((self.source, self.key, self.value)).encode(), digest_size=DIGEST_BYTES).hexdigest()

    def row(self, max_bytes: int | None = None) -> dict[str, Any]:
        """Return the dead letter as a dict for display. A value of more than ``max_bytes`` is truncated and ends with "…"."""
        given = self.value or b""
        value = given[:max_bytes].decode("utf-8", "backslashreplace")
        if max_bytes is not None and len(given) > max_bytes:
            value += "…"
        key = None if self.key is None else self.key.decode("utf-8", "backslashreplace")
        received = {"received": header_texts(self.received)} if self.received else {}
        return {"partition": self.partition, "offset": self.offset, **self.headers, **received, "key": key, "value": value}


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Filter by which a command selects dead letters of one component. Empty sets do not restrict the selection.

    Attributes:
        app_id: Name of the application that rejected the events. Dead letters without an application name match, too.
        component: Name that the component (fold, read store, subscriber or view) had when it rejected the events.
        positions: Partitions and offsets of events in the source.
        kind: ``fold``, ``store``, ``subscriber`` or ``view``. A dead letter has a header that is called like the kind, whose value
            is the component's name.
        event_sources: ``ce_source`` values of events.
        since_ms: Only dead letters that were written at this time or later; 0: all.
        renamed: Current name of the component; empty if it was not renamed.
    """

    app_id: str
    component: str
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
        """Address of the component, ``app_id/name``, in the header of replayed events and in the receipts of :mod:`.replay`."""
        return replay_target(self.app_id, self.renamed or self.component).decode()

    @property
    def options(self) -> list[str]:
        """Names of the command-line options that restrict the selection, such as ``--key``."""
        return [
            option
            for option, given in (
                ("--key", self.keys), ("--offset", self.positions), ("--reason", self.reasons), ("--event-id", self.event_ids),
                ("--event-source", self.event_sources), ("--since", self.since_ms),
            )
            if given
        ]  # fmt: skip

    def concerns(self, dead_letter: ListedDeadLetter) -> bool:
        """Return whether a dead letter was written by the selected component."""
        headers = dead_letter.headers
        return headers.get(self.kind) == self.component and headers.get("app-id", self.app_id) == self.app_id

    def matches(self, dead_letter: ListedDeadLetter) -> bool:
        """Return whether a dead letter meets all options of the selection. :meth:`concerns` checks its component."""
        return (
            (not self.reasons or dead_letter.reason in self.reasons)
            and (not self.positions or dead_letter.position in self.positions)
            and (not self.keys or dead_letter.key in self.keys)
            and (not self.event_ids or dead_letter.headers.get("event-id") in self.event_ids)
            and (not self.event_sources or dead_letter.event_source in self.event_sources)
            and dead_letter.timestamp_ms >= self.since_ms
        )


def header_texts(headers: Headers) -> dict[str, str]:
    """Return headers as text, by name; if a name is repeated, the last value counts."""
    return {name: (value or b"").decode("utf-8", "backslashreplace") for name, value in headers}


def split_headers(headers: Headers) -> tuple[dict[str, str], Headers]:
    """Return the headers of the dead letter itself, as text by name, and the headers of the rejected event, as received."""
    at = next((at for at, (name, _) in enumerate(headers) if name == RECEIVED_HEADER), len(headers))
    count = header_texts(headers[at : at + 1]).get(RECEIVED_HEADER, "")
    behind = at + 1 + (int(count) if count.isdecimal() else 0)
    return header_texts([*headers[:at], *headers[behind:]]), headers[at + 1 : behind]
