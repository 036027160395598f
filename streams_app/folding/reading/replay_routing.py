"""Which fold an event is meant for that was put back from the dead letters (pure).

The other folds of its source, and other applications that read it, have taken the event already when it was there first. Its header
``streams-app-replay`` names the application and the fold, ``<app_id>/<fold>``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.folding.reading.reader import DecodedRange

REPLAY_HEADER: Final = "streams-app-replay"

_HEADERS: Final = attrgetter("headers")


def replay_target(app_id: str, fold: str) -> bytes:
    """What the header of an event says that was put back for a fold; neither name holds a slash."""
    return f"{app_id}/{fold}".encode()


def target_of(headers: Sequence[tuple[str, bytes]]) -> bytes | None:
    """Whom an event is for; None: for everybody, as it comes from the producer."""
    return next((target or b"" for name, target in headers if name == REPLAY_HEADER), None)


class RoutedRange:
    """A range of records, and who reads what of it."""

    def __init__(self, app_id: str, folds: Sequence[str], records: list[Any], decoded: list[Any] | None) -> None:
        """Looks for headers once.

        Args:
            app_id: Name of this application; an event put back for another one is left to that.
            folds: Names of all its folds of the source.
            records: The range.
            decoded: The same records decoded; None where no fold wants them so.
        """
        self._app_id = app_id
        self._folds = folds
        self._records = records
        self._decoded = decoded
        self._has_headers = any(map(_HEADERS, records))

    def records_for(self, fold: str, reading: DecodedRange) -> tuple[list[Any], list[Any] | None]:
        """What one fold has to read, and the same of what was decoded.

        Args:
            fold: Its name.
            reading: Gets what was put back for folds that are no longer there; the first fold of the source speaks for them.
        """
        records, decoded = self._records, self._decoded
        if not self._has_headers:
            return records, decoded
        if fold == self._folds[0]:
            reading.refused += self._for_unknown_folds()
        # A bare name is how an event was addressed before applications were told apart; it may still be read again.
        meant = None, replay_target(self._app_id, fold), fold.encode()
        mine = [i for i in range(len(records)) if target_of(records[i].headers) in meant]
        return [records[i] for i in mine], None if decoded is None else [decoded[i] for i in mine]

    def _for_unknown_folds(self) -> Iterator[RejectedEvent]:
        """Events put back for a fold that was renamed or removed since: dead letters of that name, not skipped by everybody."""
        ours = replay_target(self._app_id, "")
        for record in self._records:
            target = target_of(record.headers)
            if target is None or not target.startswith(ours):
                continue
            name = target[len(ours) :].decode("utf-8", "backslashreplace")
            if name not in self._folds:
                detail = f"put back for fold {name}, which {self._app_id} no longer has for this topic: renamed or removed"
                yield RejectedEvent(record, "unknown-fold", detail, name)
