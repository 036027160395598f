"""Encodes the commit metadata of a subscriber: the finished and the begun offsets above the committed one (pure).

The format is ``1.<topic id>~<fingerprints>.<body>.<checksum>``. The fingerprints identify records that were read; metadata
without them, such as that of an earlier version, has no ``~``.
A later format begins with its number and a dot. The body lists finished intervals and begun offsets in ascending
order, each as its distance from the end of the previous one and its length, as variable-length integers with seven bits a byte,
in base 64. The checksum includes the committed offset, so metadata is not valid with another offset.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from streams_app.delivery.fingerprints import Fingerprint, of_text, to_text
from streams_app.delivery.log_continuity import StoredPosition
from streams_app.errors import NewerFormatError
from streams_app.subscribers.state.intervals import Interval
from streams_app.subscribers.state.offset_tracker import OffsetsAbove

MAX_METADATA_BYTES: Final = 3_000
"""Limit for the metadata of one processor: a broker accepts 4 096 bytes a commit, which also contain names and offsets."""

_VERSION: Final = "1"
_SHAPE: Final = re.compile(r"1\.([^.]*)\.([A-Za-z0-9_-]*)\.([0-9a-f]{8})", re.ASCII)
_NUMBER: Final = re.compile(r"([0-9]{1,9})\.", re.ASCII)
_SEVEN_BITS: Final = 0x7F
_MORE: Final = 0x80
_MAX_NUMBER_BYTES: Final = 9


class OffsetMetadata(NamedTuple):
    """The decoded metadata of a commit.

    Attributes:
        topic_id: Id of the topic; "" if the broker provides none.
        above: Offsets at or above the committed one that are finished or begun.
        read: Fingerprints of some of the records that were read, to identify the log.
    """

    topic_id: str
    above: OffsetsAbove
    read: tuple[Fingerprint, ...] = ()

    @property
    def log(self) -> str:
        """Encoded part of the metadata that identifies the log: topic id and fingerprints."""
        return f"{self.topic_id}~{to_text(self.read)}" if self.read else self.topic_id


class _Part(NamedTuple):
    """A finished interval, or one begun offset."""

    begin: int
    end: int
    is_begun: bool


def stored_position(offset: int, metadata: OffsetMetadata | None) -> StoredPosition:
    """Return what a commit of ``offset`` shows about the log; ``metadata`` is None if there is none, or it is not valid."""
    if metadata is None:
        return StoredPosition(offset)
    ends = [run.end for run in metadata.above.finished]
    read_to = max([offset, *ends, *(each.offset + 1 for each in metadata.read)])
    return StoredPosition(read_to, metadata.topic_id, metadata.read)


def encoded(low: int, metadata: OffsetMetadata) -> str:
    """Encode commit metadata as text, without a limit on its length.

    Args:
        metadata: Must contain no offset below ``low``, and no finished interval that begins at ``low``.
    """
    return _text(low, metadata.log, b"".join(data for _, data in _written(low, metadata.above)))


def fits(low: int, metadata: OffsetMetadata, max_bytes: int = MAX_METADATA_BYTES) -> bool:
    """Return whether metadata has at most ``max_bytes`` when it is encoded for a commit of the offset ``low``."""
    return len(encoded(low, metadata)) <= max_bytes


def fitted(low: int, metadata: OffsetMetadata, max_bytes: int = MAX_METADATA_BYTES) -> str:
    """Encode commit metadata for a commit of the offset ``low`` in at most ``max_bytes``.

    If necessary, the highest offsets are omitted; their events may run twice after a crash.
    """
    room_bytes = (max_bytes - len(_text(low, metadata.log, b""))) * 3 // 4
    body = b""
    for _, data in _written(low, metadata.above):
        if len(body) + len(data) > room_bytes:
            break
        body += data
    return _text(low, metadata.log, body)


def decoded(text: str, low: int, log_end: int) -> OffsetMetadata | None:
    """Decode and validate the metadata of a commit; None if it is not valid, so that no offset from ``low`` on counts as finished.

    Metadata with offsets above ``log_end`` belongs to another log.

    Raises:
        NewerFormatError: A newer version has written it, in a format that this version does not know.
    """
    number = _NUMBER.match(text)
    if number is not None and int(number[1]) > int(_VERSION):
        raise NewerFormatError("commit metadata of a subscriber", number[1])
    shape = _SHAPE.fullmatch(text)
    if shape is None or _checksum(low, shape[1], shape[2]) != shape[3]:
        return None
    try:
        parts = list(_read(low, urlsafe_b64decode(shape[2] + "=" * (-len(shape[2]) % 4))))
    except (ValueError, binascii.Error):
        return None
    if parts and parts[-1].end > log_end:
        return None
    finished = tuple(Interval(part.begin, part.end) for part in parts if not part.is_begun)
    topic_id, _, read = shape[1].partition("~")
    return OffsetMetadata(topic_id, OffsetsAbove(finished, tuple(part.begin for part in parts if part.is_begun)), of_text(read))


def _written(low: int, above: OffsetsAbove) -> Iterator[tuple[_Part, bytes]]:
    """Yield the finished intervals and begun offsets in ascending order, each with its encoding."""
    parts = [_Part(*run, is_begun=False) for run in above.finished]
    parts += [_Part(offset, offset + 1, is_begun=True) for offset in above.begun]
    before = low
    for part in sorted(parts):
        length = part.end - part.begin
        yield part, _number(part.begin - before) + _number(length << 1 | part.is_begun)
        before = part.end


def _read(low: int, body: bytes) -> Iterator[_Part]:
    """Yield the finished intervals and begun offsets that the body lists; raise a ValueError if it is malformed."""
    numbers = list(_numbers(body))
    if len(numbers) % 2:
        raise ValueError("a distance without a length")
    before, was_finished = low, True
    for distance, packed in zip(numbers[::2], numbers[1::2], strict=True):
        length, is_begun = packed >> 1, bool(packed & 1)
        # The committed offset is never finished, and finished intervals that touch would have been merged.
        if length < 1 or (is_begun and length > 1) or (not is_begun and was_finished and distance == 0):
            raise ValueError("a part that is none")
        yield _Part(before + distance, before + distance + length, is_begun)
        before, was_finished = before + distance + length, not is_begun


def _number(value: int) -> bytes:
    data = bytearray()
    while value > _SEVEN_BITS:
        data.append(_MORE | value & _SEVEN_BITS)
        value >>= 7
    data.append(value)
    return bytes(data)


def _numbers(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & _SEVEN_BITS) << shift
        shift += 7
        if not byte & _MORE:
            yield value
            value = shift = 0
        elif shift >= 7 * _MAX_NUMBER_BYTES:
            raise ValueError("a number beyond all offsets")
    if shift:
        raise ValueError("a number is cut off")


def _text(low: int, log: str, body: bytes) -> str:
    shown = urlsafe_b64encode(body).decode().rstrip("=")
    return f"{_VERSION}.{log}.{shown}.{_checksum(low, log, shown)}"


def _checksum(low: int, log: str, body: str) -> str:
    return f"{crc32(f'{low}.{log}.{body}'.encode()):08x}"
