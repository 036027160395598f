"""Defines the common exceptions of this project, and the exit code of a process that ends because of them.

An exception with ``-`` does not end a process.

::

    StreamsAppError            70  internal failure
    ├── ConfigurationError      1  settings, topics, rights or arguments are wrong; every fault is listed
    ├── BehindError             3  a comparison is meaningless: the read store is behind and makes no progress
    ├── CursorError             2  a cursor of a journal cannot be read
    ├── NewerFormatError        1  a newer version has written state or a commit; this version leaves it alone
    ├── JournalGoneError        1  a journal has removed the events after a cursor
    ├── TryAgainError          75  a dependency is unavailable, or another worker is the owner; a supervisor restarts the process
    │   └── NotPublishedError  75  the broker has not acknowledged an event, and may or may not have it
    ├── UnknownFoldError        -  a request names a fold that is not declared
    ├── InternalError          70  a bug, or a dependency that violates its guarantees
    ├── BadEventError           -  one event cannot be folded, handled or published; a received event becomes a dead letter
    │   └── BeyondDoubleError   -  an event has a number that cannot be kept; only a component that uses it fails
    └── NotDecodedError         -  an event could not be decoded when the function of its subscriber was about to be called
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from streams_app.reasons import Reason


def text_of(error: BaseException) -> str:
    """Return the class and the message of an error as text; only the class if the message is empty.

    Unlike ``repr``, it always contains the message: the ``repr`` of redis-py's errors omits it.
    """
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001  # __str__ of a user's class may raise anything
        text = f"its text raises {type(broken).__name__}"
    return f"{type(error).__name__}({text!r})" if text else type(error).__name__


class StreamsAppError(Exception):
    """Base class of this project's exceptions. Most of them end a command with their message and :attr:`exit_code`."""

    exit_code = 70

    @property
    def may_have_values(self) -> bool:
        """Whether the message may contain values of events or rows, which only the log may have."""
        return False


MAX_PUBLIC_TEXT: Final = 400


def public_text(error: BaseException) -> str:
    """Return the reason of an error without values of events or rows, for readers who may not see data; at most one line.

    Only messages of this project are known to contain none. Of any other error, the class is returned.
    """
    if isinstance(error, StreamsAppError) and not error.may_have_values and (text := " ".join(str(error).split())):
        return text if len(text) <= MAX_PUBLIC_TEXT else f"{text[:MAX_PUBLIC_TEXT]}…"
    return f"{type(error.__cause__ or error).__name__}; the log of the worker has its text, which may contain values"


class ConfigurationError(StreamsAppError):
    """Settings, topics, rights or arguments of a command are wrong; ``faults`` has a sentence about each fault."""

    exit_code = 1

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = list(faults)


class BehindError(StreamsAppError):
    """A read store is behind and makes no progress; records that the store has not applied cannot be compared with its values."""

    exit_code = 3


FORMAT: Final = 1
"""Newest format of commits and read stores that this version reads. What carries no number has format 1."""

STATE_FORMAT: Final = 3
"""Newest format of state in Redis that this version reads; ``delivery/lua/fenced.lua`` has the same number.

A shard of a fold has format 3 while it may have packed groups, and at least 2 while its outbox may have an entry of several
records; everything else has format 1.
"""


RESET_FORMAT: Final = "reset"
"""Format of a state that ``streams-app reset`` is removing: no version reads or claims it."""


class NewerFormatError(StreamsAppError):
    """Stored state or a commit has the format of a newer version of this project, or is being removed. Nothing was written.

    Attributes:
        is_reset: Whether ``streams-app reset`` is removing the state.
    """

    exit_code = 1

    def __init__(self, what: str, found: str, known: int = FORMAT) -> None:
        self.is_reset = found == RESET_FORMAT
        why = (
            f"{what} has format {found}, and this version reads formats up to {known}: a newer version of streams-app wrote it. "
            "Use that version, or a later one"
        )
        if self.is_reset:
            why = f"`streams-app reset` is removing {what}; if it was interrupted, run it again"
        # Not that of the next class: a NewerStateError is also a FencedError, whose arguments differ.
        Exception.__init__(self, why)


def is_readable_format(stored: bytes | None) -> bool:
    """Return whether this version can read state in Redis, by its field ``format``; None: it has format 1."""
    return stored is None or (stored.isdigit() and int(stored) <= STATE_FORMAT)


def check_state_format(what: str, stored: bytes | None) -> None:
    """Check that this version can read state in Redis.

    Args:
        stored: Field ``format`` of the state; None: it has format 1.

    Raises:
        NewerFormatError: A newer version has written it.
    """
    if stored is not None and not is_readable_format(stored):
        raise NewerFormatError(what, stored.decode(errors="backslashreplace"), STATE_FORMAT)


class CursorError(StreamsAppError):
    """A cursor of a journal is invalid; no event was read."""

    exit_code = 2


class JournalGoneError(StreamsAppError):
    """A journal has removed the events of a partition that follow a cursor.

    Attributes:
        partition: Number of the partition.
        floor: Offset after the last removed one.
        lost: First and last of the removed offsets that follow the cursor.
        next: Cursor with which a reader continues at ``floor``.
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
    """A dependency is unavailable; a later attempt may succeed."""

    exit_code = 75


class NotPublishedError(TryAgainError):
    """The broker has not acknowledged events; the log may or may not have them.

    To repeat the call, publish the events under the same ids.

    Attributes:
        event_id: Id of the first event of the call, acknowledged or not.
        event_ids: Ids of all events of the call in order, acknowledged or not.
    """

    def __init__(self, event_key: str, event_ids: Sequence[str], unknown: int, why: str) -> None:
        super().__init__(
            f"{event_key}: {unknown} of {len(event_ids)} not acknowledged ({why}), so it is unknown whether the log has them; "
            f"publish again with event_id {', '.join(event_ids[:3])}{', …' if len(event_ids) > 3 else ''}"  # noqa: PLR2004  # to fit on a line
        )
        self.event_id = event_ids[0]
        self.event_ids = tuple(event_ids)


class UnknownFoldError(StreamsAppError):
    """A request names a fold that is not declared; the message lists the declared folds."""

    def __init__(self, name: str, declared: Sequence[str]) -> None:
        super().__init__(f"there is no fold {name!r}; declared: {', '.join(declared)}")


class InternalError(StreamsAppError):
    """An inconsistent state: a bug, or a dependency that violates its guarantees."""

    exit_code = 70


class BadEventError(StreamsAppError):
    """One event that cannot be folded, handled or published.

    Attributes:
        reason: Why the event is bad. If the event was received, it becomes a dead letter with this reason.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class NotDecodedError(StreamsAppError):
    """An event could not be decoded when the function of its subscriber was about to be called. The function was not called."""

    def __init__(self, bad: BadEventError) -> None:
        super().__init__(str(bad))
        self.bad = bad


class BeyondDoubleError(BadEventError):
    """The JSON of an event has a number that cannot be kept. Only a component that uses the number rejects the event.

    The number is too large for a double and not an integer, or it has more than 4000 digits.

    Attributes:
        rest: The event, with an :class:`.Unrepresentable` instead of each such number.
    """

    def __init__(self, detail: str, rest: dict[str, Any]) -> None:
        super().__init__("not-json", detail)
        self.rest = rest
