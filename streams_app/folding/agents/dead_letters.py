"""Records that cannot be folded, as they are produced to the dead-letter topic.

Key and value are as received; the reason and the place of the event in its source are in the headers, as text. The broker has
acknowledged a dead letter before the fence passes its offset.
"""

from __future__ import annotations

from streams_app.fold import Fold
from streams_app.folding.reading.reader import Refused
from streams_app.kafka.producer import Outgoing
from streams_app.reasons import RECORD_TOO_LARGE, Reason

DETAIL_BYTES = 500
VALUE_NOT_KEPT = "value-bytes-not-kept"
KEY_NOT_KEPT = "key-bytes-not-kept"
"""Headers of a letter that is not what was received: how many bytes are missing. It cannot be put back."""


def dead_letter(app_id: str, fold: Fold, refused: Refused, topic: str, partition: int, now_ms: int) -> Outgoing:
    """The dead letter of a refused event.

    Args:
        app_id: Name of this application; another one may have a fold of that name and the same dead-letter topic.
        fold: The fold that refused the event; another fold of the same source may have taken it.
        refused: The record and the reason.
        topic: Source topic.
        partition: Source partition.
        now_ms: Wall clock.
    """
    name = refused.addressee or fold.name
    headers = _headers(name, refused.reason, topic, partition, refused.record.offset, now_ms, refused.detail)
    headers.append(("app-id", app_id.encode()))
    return Outgoing(fold.dead_letters, refused.record.key, refused.record.value, headers)


def too_large_letter(fold: Fold, record: Outgoing, topic: str, partition: int, now_ms: int) -> Outgoing:
    """The dead letter of a folded record that the broker refuses for its size: it has the record's key and id, and no value."""
    fold_id = dict(record.headers)["fold-id"]
    first_offset = int(fold_id.decode().rsplit(":", 1)[1].split("-", 1)[0])
    headers = _headers(fold.name, RECORD_TOO_LARGE, topic, partition, first_offset, now_ms, f"{len(record.value or b'')} bytes")
    return Outgoing(fold.dead_letters, record.key, None, [*headers, ("fold-id", fold_id)])


def without_content(letter: Outgoing) -> Outgoing:
    """The same letter without its value, then without its key, for a topic that takes less than the source.

    How large they were is in a header of its own, and for people in the detail.
    """
    what, lost = ("value", letter.value) if letter.value else ("key", letter.key or b"")
    told = f"; {what} of {len(lost)} bytes not kept".encode()
    headers = [(name, value + told if name == "detail" else value) for name, value in letter.headers]
    headers.append((VALUE_NOT_KEPT if letter.value else KEY_NOT_KEPT, str(len(lost)).encode()))
    return letter._replace(key=letter.key if letter.value else None, value=None, headers=headers)


def _headers(  # one a header
    fold: str, reason: Reason, topic: str, partition: int, offset: int, now_ms: int, detail: str
) -> list[tuple[str, bytes]]:
    return [
        ("reason", reason.encode()),
        ("fold", fold.encode()),
        ("source-topic", topic.encode()),
        ("source-partition", str(partition).encode()),
        ("source-offset", str(offset).encode()),
        ("failed-at-ms", str(now_ms).encode()),
        # An error of a user's function may quote half a surrogate pair.
        ("detail", detail.encode(errors="backslashreplace")[:DETAIL_BYTES]),
    ]
