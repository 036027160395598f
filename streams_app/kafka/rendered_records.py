"""Records that the native core has rendered, which the producer packs without an object for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, overload

from streams_app.delivery.producer import OutgoingRecord
from streams_app.native import ColumnRecords

FOLD_ID: Final = "fold-id"
"""Name of the header with the id of a folded record."""


class RenderedRecords(Sequence[OutgoingRecord]):
    """Folded records for one topic; a record becomes an object only if it is read by itself.

    Attributes:
        columns: The records in the native core.
    """

    def __init__(self, topic: str, columns: ColumnRecords) -> None:
        self.topic = topic
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns)

    @overload
    def __getitem__(self, index: int) -> OutgoingRecord: ...

    @overload
    def __getitem__(self, index: slice) -> list[OutgoingRecord]: ...

    def __getitem__(self, index: int | slice) -> OutgoingRecord | list[OutgoingRecord]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        fold_id, key, value = self.columns.record(range(len(self))[index])
        return OutgoingRecord(self.topic, key, value, [(FOLD_ID, fold_id)])
