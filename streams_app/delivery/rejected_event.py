"""A rejected record and the reason, from which its dead letter is built (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from streams_app.reasons import Reason

NOT_KEPT: Final = {"value": "value-bytes-not-kept", "key": "key-bytes-not-kept", "headers": "header-bytes-not-kept"}
"""Part of a record → header of a dead letter that was sent without this part; its value is the size of the part. A dead letter with
this header cannot be replayed."""


@dataclass(frozen=True, slots=True)
class RejectedEvent:
    """A rejected record and the reason, from which its dead letter is built.

    Attributes:
        record: The record as received: its offset, key and value are used.
        reason: Reason of its dead letter.
        detail: Description of the fault.
        addressee: Processor for which the record was replayed, if that is not the one that rejects it.
        headers: Additional headers of the dead letter.
    """

    record: Any
    reason: Reason
    detail: str
    addressee: str = ""
    headers: tuple[tuple[str, bytes], ...] = ()
