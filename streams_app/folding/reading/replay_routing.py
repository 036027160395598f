"""Routes replayed dead letters to the fold that rejected them (pure).

The other folds of the source, and other applications, folded the event when it first arrived, so they skip it now. The header
``streams-app-replay`` of a replayed event names the application and the fold: ``<app_id>/<fold>``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.folding.reading.reader import RangeFaults
from streams_app.native import have_headers

REPLAY_HEADER: Final = "streams-app-replay"


def replay_target(app_id: str, fold: str) -> bytes:
    """Return the value of the replay header, ``<app_id>/<fold>``."""
    return f"{app_id}/{fold}".encode()


def target_of(headers: Sequence[tuple[str, bytes]]) -> bytes | None:
    """Return the value of the replay header; None if the event is not replayed, so that every fold reads it."""
    return next((target or b"" for name, target in headers if name == REPLAY_HEADER), None)


class RoutedRange:
    """A range of records of a source; each fold reads those that are not replayed for another fold or application.

    ``folds`` are all folds of this application that read the source; ``decoded`` is None if none of them needs decoded values.
    """

    def __init__(self, app_id: str, folds: Sequence[str], records: Sequence[Any], decoded: list[Any] | None) -> None:
        self._app_id = app_id
        self._folds = folds
        self._records = records
        self._decoded = decoded
        self._has_headers = have_headers(records)

    def records_for(self, fold: str, faults: RangeFaults) -> tuple[Sequence[Any], list[Any] | None]:
        """Return the records of the range that a fold reads, and their decoded values; None instead if the range was not decoded.

        For the first fold of the source, events that are replayed for folds that no longer exist are added to ``faults``.
        """
        records, decoded = self._records, self._decoded
        if not self._has_headers:
            return records, decoded
        if fold == self._folds[0]:
            faults.rejected += self._for_unknown_folds()
        # Earlier versions wrote only the name of the fold; such events may still be in the log.
        meant = None, replay_target(self._app_id, fold), fold.encode()
        mine = [i for i in range(len(records)) if target_of(records[i].headers) in meant]
        return [records[i] for i in mine], None if decoded is None else [decoded[i] for i in mine]

    def _for_unknown_folds(self) -> Iterator[RejectedEvent]:
        """Yield, as rejected, the events replayed for a renamed or removed fold; they become its dead letters again."""
        ours = replay_target(self._app_id, "")
        for record in self._records:
            target = target_of(record.headers)
            if target is None or not target.startswith(ours):
                continue
            name = target[len(ours) :].decode("utf-8", "backslashreplace")
            if name not in self._folds:
                detail = f"put back for fold {name}, which {self._app_id} no longer has for this topic: renamed or removed"
                yield RejectedEvent(record, "unknown-fold", detail, name)
