"""One exception tree; each class says how the process ends.

::

    StreamsAppError            70  internal failure
    ├── ConfigurationError      1  settings or topics are wrong; every fault is listed
    ├── BehindError             3  a comparison says little: the store is behind, and stands still
    ├── CursorError             2  a cursor of a journal cannot be read
    ├── JournalGoneError        1  a journal has removed what follows a cursor
    ├── TryAgainError          75  a dependency is away, or another worker owns; a supervisor restarts
    │   └── NotPublishedError  75  the broker has not acknowledged an event: nobody knows whether it has it
    ├── UnknownFoldError        -  a page is asked for a fold that is not declared
    ├── InternalError          70  a bug, or a promise broken by somebody else
    ├── BadEventError           -  one event cannot be folded, handled or published: what was received becomes a dead letter
    │   └── BeyondDoubleError   -  unless nobody needs the number that cannot be read
    └── NotDecodedError         -  the same, found where the function of a subscriber would have been called
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streams_app.reasons import Reason


def text_of(error: BaseException) -> str:
    """Class and message, or the class alone; the ``repr`` of redis-py's errors leaves the message out."""
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001  # a class of the user's may raise anything
        text = f"its text raises {type(broken).__name__}"
    return f"{type(error).__name__}({text!r})" if text else type(error).__name__


class StreamsAppError(Exception):
    """Base of all errors this project raises on purpose."""

    exit_code = 70


class ConfigurationError(StreamsAppError):
    """Settings that cannot work, all faults at once."""

    exit_code = 1

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = list(faults)


class BehindError(StreamsAppError):
    """What was to be compared is behind and stands still: what it has not taken cannot be compared."""

    exit_code = 3


class CursorError(StreamsAppError):
    """Where a reader of a journal is to begin cannot be read; nothing was asked."""

    exit_code = 2


class JournalGoneError(StreamsAppError):
    """A journal has removed what follows a cursor; what is still there begins at the floor.

    Attributes:
        partition: Where.
        floor: First offset that is kept there.
        lost: First and last offset that are gone.
        next: Cursor that goes on from the floor.
    """

    exit_code = 1

    def __init__(self, partition: int, lost: tuple[int, int], next_cursor: str) -> None:
        first, last = lost
        super().__init__(f"offsets {first} to {last} of partition {partition} are removed: it begins at {partition}-{last + 1}")
        self.partition = partition
        self.floor = last + 1
        self.lost = lost
        self.next = next_cursor


class TryAgainError(StreamsAppError):
    """Something outside is missing now and may be there later."""

    exit_code = 75


class NotPublishedError(TryAgainError):
    """Events that the broker has not acknowledged: nobody knows whether the log has them.

    Attributes:
        event_id: The id of the first of them; published again with it, the event is the same.
        event_ids: The ids of all that were published together, acknowledged or not, in their order.
    """

    def __init__(self, event_key: str, event_ids: Sequence[str], unknown: int, why: str) -> None:
        super().__init__(
            f"{event_key}: {unknown} of {len(event_ids)} not acknowledged ({why}), so nobody knows whether the log has them; "
            f"publish again with event_id {', '.join(event_ids[:3])}{', …' if len(event_ids) > 3 else ''}"  # noqa: PLR2004  # as many as a line holds
        )
        self.event_id = event_ids[0]
        self.event_ids = tuple(event_ids)


class UnknownFoldError(StreamsAppError):
    """Somebody asks for a fold that is not declared; names those that are."""

    def __init__(self, name: str, declared: Sequence[str]) -> None:
        super().__init__(f"there is no fold {name!r}; declared: {', '.join(declared)}")


class InternalError(StreamsAppError):
    """A state that should not exist."""

    exit_code = 70


class BadEventError(StreamsAppError):
    """One event that cannot be folded, handled or published.

    Attributes:
        reason: Reason of its dead letter.
        detail: What was found, for people.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class NotDecodedError(StreamsAppError):
    """One event of a subscriber that cannot be decoded, found in the place of the call; not what its function may raise.

    Attributes:
        bad: What is wrong with it.
    """

    def __init__(self, bad: BadEventError) -> None:
        super().__init__(str(bad))
        self.bad = bad


class BeyondDoubleError(BadEventError):
    """JSON that holds a number beyond a double, which not every fold has to read.

    Attributes:
        rest: The event, with null in the place of such numbers.
    """

    def __init__(self, detail: str, rest: dict[str, Any]) -> None:
        super().__init__("not-json", detail)
        self.rest = rest
