"""One event as a fold sees it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from streams_app.folding.core.names import unmasked

Event = tuple[int, int, bytes, dict[str, Any] | int]
"""The fields of a :class:`FoldEvent`: a plain tuple is made in half the time, and there is one for each event."""


class FoldEvent(NamedTuple):
    """One event as a fold sees it.

    Attributes:
        offset: Offset in the source partition.
        timestamp_ms: Timestamp of the record; negative where the producer gave none.
        group: Member bytes (see :func:`streams_app.codec.member_of`).
        names: Changed name → value, as decoded; where values are not kept perhaps the mask of the names.
    """

    offset: int
    timestamp_ms: int
    group: bytes
    names: dict[str, Any] | int

    @property
    def changed(self) -> Mapping[str, Any]:
        """Changed name → value; of a mask each with an empty one."""
        return unmasked(self.names)
