"""Which fold an event is meant for that was put back from the dead letters (pure).

The other folds of its source, and other applications that read it, have taken the event already when it was there first. Its header
``streams-app-replay`` names the application and the fold, ``<app_id>/<fold>``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from streams_app.folding.reader import Refused

REPLAY_HEADER: Final = "streams-app-replay"


def address_of(app_id: str, fold: str) -> bytes:
    """What the header of an event says that was put back for a fold; neither name holds a slash."""
    return f"{app_id}/{fold}".encode()


def addressee_of(headers: Sequence[tuple[str, bytes]]) -> bytes | None:
    """Whom an event is for; None: for everybody, as it comes from the producer."""
    return next((target or b"" for name, target in headers if name == REPLAY_HEADER), None)


def addressed_to(
    app_id: str, fold: str, records: list[Any], decoded: list[Any] | None, begin: int, *, has_headers: bool
) -> tuple[list[Any], list[Any] | None]:
    """What one fold has to read of a range from a position on, and the same of what was decoded."""
    if not has_headers:
        return (records[begin:], decoded and decoded[begin:]) if begin else (records, decoded)
    # A bare name is how an event was addressed before applications were told apart; it may still be read again.
    meant = None, address_of(app_id, fold), fold.encode()
    mine = [i for i in range(begin, len(records)) if addressee_of(records[i].headers) in meant]
    return [records[i] for i in mine], None if decoded is None else [decoded[i] for i in mine]


def astray(app_id: str, folds: Collection[str], records: Sequence[Any]) -> list[Refused]:
    """Events put back for a fold that this application no longer has for their source: it was renamed or removed since.

    They become dead letters of that name again instead of being skipped by everybody.

    Args:
        app_id: Of this application; what is meant for another one is left to it.
        folds: Names of all its folds of the source.
        records: A range.
    """
    found = []
    ours = address_of(app_id, "")
    for record in records:
        target = addressee_of(record.headers)
        if target is None or not target.startswith(ours):
            continue
        name = target[len(ours) :].decode("utf-8", "backslashreplace")
        if name not in folds:
            detail = f"put back for fold {name}, which {app_id} no longer has for this topic: renamed or removed"
            found.append(Refused(record, "unknown-fold", detail, name))
    return found
