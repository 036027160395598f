"""Records that cannot be folded, as they are produced to the dead-letter topic.

Key and value are as received; why, and where from, is in the headers as text. A dead letter is acknowledged by the broker
before the fence passes its offset.
"""

from __future__ import annotations

from streams_app.folding.definition import Fold
from streams_app.folding.reader import Refused
from streams_app.kafka.producer import Outgoing

DETAIL_BYTES = 500


def dead_letter(fold: Fold, refused: Refused, topic: str, partition: int, now_ms: int) -> Outgoing:
    """The dead letter of a refused event.

    Args:
        fold: Which fold refused it; another fold of the same source may have taken it.
        refused: The record and the reason.
        topic: Source topic.
        partition: Source partition.
        now_ms: Wall clock.
    """
    headers = _headers(fold, refused.reason, topic, partition, refused.record.offset, now_ms, refused.detail)
    return Outgoing(fold.dead_letters, refused.record.key, refused.record.value, headers)


def too_large_letter(fold: Fold, record: Outgoing, topic: str, partition: int, now_ms: int) -> Outgoing:
    """The dead letter of a folded record that the broker refuses for its size: its key and id, without the value."""
    fold_id = dict(record.headers)["fold-id"]
    first_offset = int(fold_id.decode().rsplit(":", 1)[1].split("-", 1)[0])
    headers = _headers(fold, "record-too-large", topic, partition, first_offset, now_ms, f"{len(record.value or b'')} bytes")
    return Outgoing(fold.dead_letters, record.key, None, [*headers, ("fold-id", fold_id)])


def without_content(letter: Outgoing) -> Outgoing:
    """The same letter without its value, then without its key, for a topic that takes less than the source.

    How large they were is in the detail.
    """
    lost = f"; value of {len(letter.value)} bytes not kept" if letter.value else f"; key of {len(letter.key or b'')} bytes not kept"
    headers = [(name, value + lost.encode() if name == "detail" else value) for name, value in letter.headers]
    return letter._replace(key=letter.key if letter.value else None, value=None, headers=headers)


def _headers(  # one a header
    fold: Fold, reason: str, topic: str, partition: int, offset: int, now_ms: int, detail: str
) -> list[tuple[str, bytes]]:
    return [
        ("reason", reason.encode()),
        ("fold", fold.name.encode()),
        ("source-topic", topic.encode()),
        ("source-partition", str(partition).encode()),
        ("source-offset", str(offset).encode()),
        ("failed-at-ms", str(now_ms).encode()),
        ("detail", detail.encode()[:DETAIL_BYTES]),
    ]
