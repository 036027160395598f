"""Reads events by the native core, without an object for each; :class:`.FastReader`, the reference, reads unusual ones (pure).

This module stands alone, because only it needs the native core.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from streams_app.delivery.batch import SourceRecord
from streams_app.fold import Fold
from streams_app.folding.core.event import Event
from streams_app.folding.core.names import bit_of, mask_of, names_of_mask
from streams_app.folding.reading.fast import FastReader
from streams_app.folding.reading.reader import RangeFaults
from streams_app.native import MASK_BYTES, NATIVE_ERROR, EventColumns, NativeCore, is_columnar
from streams_app.settings import Limits

logger = logging.getLogger(__name__)


class ColumnarReader(FastReader):
    """Reads the events of columns; records that are no columns are read as :class:`.FastReader` does."""

    def __init__(self, fold: Fold, limits: Limits, core: NativeCore) -> None:
        super().__init__(fold, limits)
        self._core = core
        self._columns = core.Reader(
            str(fold.group_key), fold.changed_path, limits.value_bytes, limits.key_bytes, limits.names_per_event
        )
        self._learned: set[str] = set()
        self._is_sound = True

    def events(self, records: Sequence[SourceRecord], decoded: Sequence[Any] | None, faults: RangeFaults) -> Iterable[Event]:
        """Read the events of a range, all at once if the records are columns; see :meth:`.EventReader.events`."""
        found = self._read_columns(records, faults) if self._is_sound and is_columnar(records) else None
        return super().events(records, decoded, faults) if found is None else found

    def _read_columns(self, records: Sequence[SourceRecord], faults: RangeFaults) -> EventColumns | None:
        """Read a range by the native core; return None, and no faults, if Python must read the whole range."""
        found, by_python, left = self._core.EventColumns(records), RangeFaults(), 0
        while (at := self._advance(found)) is not None:
            if at < 0:
                return None
            left += 1
            for event in super().events(records[at : at + 1], None, by_python):
                offset, timestamp_ms, group, names = event[:4]
                mask = names if isinstance(names, int) else mask_of(names)
                if mask is None or mask.bit_length() > 8 * MASK_BYTES:
                    return None
                self._learn(mask)
                found.put(offset, timestamp_ms, group, mask.to_bytes(MASK_BYTES, "little"))
        faults.native = len(records) - left
        faults.rejected += by_python.rejected
        faults.misrouted += found.misrouted + by_python.misrouted
        for example in (found.misrouted_example, by_python.misrouted_example):
            faults.misrouted_example = faults.misrouted_example if example is None else example
        return found

    def _advance(self, found: EventColumns) -> int | None:
        """Do the same as :meth:`.EventColumns.advance`; return -1 after a fault: from then on Python reads all."""
        try:
            return found.advance(self._columns)
        except NATIVE_ERROR:
            logger.exception("native core failed, events are read by Python from now on fold=%s", self._fold.name)
            self._is_sound = False
            return -1

    def _learn(self, mask: int) -> None:
        for name in names_of_mask(mask).keys() - self._learned:
            self._learned.add(name)
            self._columns.learn(name, bit_of(name))
