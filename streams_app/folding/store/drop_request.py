"""Requests to drop an open group, as ``streams-app groups drop`` stores them for the owner of a shard, and the owner's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson


@dataclass(frozen=True, slots=True)
class DropRequest:
    """A request to drop the open fold of a group.

    Attributes:
        first_offset: First offset of the fold to drop. If this fold was emitted in the meantime, a later fold of the group is not
            dropped.
    """

    first_offset: int
    by: str
    reason: str

    def to_text(self) -> str:
        """Return the request as Redis stores it: ``<first offset> <JSON of [by, reason]>``; ``seal.lua`` parses only the offset."""
        return f"{self.first_offset} {orjson.dumps([self.by, self.reason]).decode()}"

    @classmethod
    def from_text(cls, text: str) -> DropRequest:
        """Parse the result of :meth:`to_text`, or text that a user has written by hand.

        Such a request has the user ``unknown``; if the text does not begin with an offset, it drops nothing.
        """
        first_offset, _, rest = text.partition(" ")
        try:
            by, reason = orjson.loads(rest)
        except (ValueError, TypeError):
            by, reason = "unknown", rest
        return cls(int(first_offset) if first_offset.isdecimal() else -1, str(by), str(reason))


class DroppedGroup(NamedTuple):
    """A group that the owner of its shard has dropped, with the request.

    Attributes:
        member: Group key as bytes, see :func:`streams_app.codec.member_of`.
    """

    member: bytes
    first_offset: int
    last_offset: int
    events: int
    request: DropRequest


class DropAnswer(NamedTuple):
    """The stored answer to the last request that dropped a group; it expires a week after the last drop in its shard."""

    first_offset: int
    events: int
    last_offset: int
    clock_ms: int
    request: DropRequest

    @classmethod
    def from_text(cls, text: bytes) -> DropAnswer:
        """Parse what ``seal.lua`` stores, the five fields separated by spaces."""
        first, events, last, clock_ms, request = text.decode("utf-8", "replace").split(" ", 4)
        return cls(int(first), int(events), int(last), int(clock_ms), DropRequest.from_text(request))


def dropped_groups(values: Sequence[bytes]) -> list[DroppedGroup]:
    """Parse the dropped groups in a reply of ``seal.lua``, five values for each group."""
    rows = zip(*(values[at::5] for at in range(5)), strict=True)
    return [
        DroppedGroup(member, int(first), int(last), int(events), DropRequest.from_text(request.decode("utf-8", "replace")))
        for member, first, last, events, request in rows
    ]
