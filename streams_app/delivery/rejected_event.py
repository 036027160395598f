"""A record that a processor cannot take (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from streams_app.reasons import Reason

NOT_KEPT: Final = {"value": "value-bytes-not-kept", "key": "key-bytes-not-kept", "headers": "header-bytes-not-kept"}
"""Part of a record → the header of a letter that is there without it, which says how many bytes are missing. Such a letter cannot
be put back."""


@dataclass(frozen=True, slots=True)
class RejectedEvent:
    """A record that goes to the dead-letter topic.

    Attributes:
        record: The record as received: its offset, key and value are used.
        reason: Reason of its dead letter.
        detail: What was found, for people.
        addressee: For which processor it was put back, where that is not the one that refuses it.
        headers: What the dead letter says beyond what every one says.
    """

    record: Any
    reason: Reason
    detail: str
    addressee: str = ""
    headers: tuple[tuple[str, bytes], ...] = ()
