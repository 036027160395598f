"""A rejected record and the reason, from which its dead letter is built (pure).

It is apart from :mod:`.dead_letters`, which sends to Kafka, because pure readers reject records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from streams_app.reasons import Reason

NOT_KEPT: Final = {"value": "value-bytes-not-kept", "key": "key-bytes-not-kept", "headers": "header-bytes-not-kept"}
"""For each part of a record, the header of a dead letter that was sent without that part.

The value of the header is the size of the part in bytes. A dead letter with such a header cannot be replayed.
"""


@dataclass(frozen=True, slots=True)
class RejectedEvent:
    """A rejected record and the reason, from which its dead letter is built.

    Attributes:
        record: The record as received: its offset, key and value are used.
        addressee: Name of the component whose dead letter this becomes; "" for the component that rejects the record. They differ
            if the record was replayed for a fold that no longer exists: another fold of the topic then rejects it.
    """

    record: Any
    reason: Reason
    detail: str
    addressee: str = ""
    headers: tuple[tuple[str, bytes], ...] = ()
