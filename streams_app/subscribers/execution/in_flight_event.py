"""An event of a subscriber from its record to its end, and what an attempt that did not succeed leads to (pure)."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from streams_app.errors import NotDecodedError, text_of
from streams_app.events.headers import header_bytes
from streams_app.formatting import milliseconds
from streams_app.reasons import Reason
from streams_app.subscribers.declaration.received import Reject, Retry
from streams_app.subscribers.declaration.retries import LONGEST_IN_ALL, Retries

MOST_DEATHS: Final = 3
"""An event that was running so often when its process died becomes a dead letter."""

TRACE_BYTES: Final = 2_000
LONGEST_IN_ALL_MS: Final = milliseconds(LONGEST_IN_ALL)


class InFlightEvent(msgspec.Struct, eq=False, gc=False):
    """One event that is not finished: a struct of msgspec, which is made faster than a dataclass, and holds nothing that holds it.

    Attributes:
        record: As it was read.
        size_bytes: Of its key, value and headers, about.
        attempts: How many attempts have begun that count.
        deaths: During how many of them the process died, as far as anybody knows.
        first_failed_ms: When the first attempt failed here, by the wall clock; 0: none has.
        due_ms: When the next attempt is due; 0: it does not wait.
        event_id: Id of the event, once it was decoded.
        is_interrupted: Whether it was running when its process died, and may not run again.
        waited_ms: How long it was put off here, attempts that do not count left out.
    """

    record: Any
    size_bytes: int
    attempts: int = 0
    deaths: int = 0
    first_failed_ms: int = 0
    due_ms: int = 0
    event_id: str = ""
    is_interrupted: bool = False
    waited_ms: int = 0

    @property
    def offset(self) -> int:
        """Of its record."""
        return int(self.record.offset)


class ScheduledRetry(NamedTuple):
    """The event is tried again.

    Attributes:
        after_ms: How long after now.
    """

    after_ms: int


class DeadLettering(NamedTuple):
    """The event becomes a dead letter.

    Attributes:
        reason: Why.
        detail: What was found, for people.
        headers: What the letter says beyond what every one says.
    """

    reason: Reason
    detail: str
    headers: tuple[tuple[str, bytes], ...] = ()


def after_failure(
    work: InFlightEvent, error: BaseException, retries: Retries, *, is_timeout: bool, is_repeatable: bool = True
) -> ScheduledRetry | DeadLettering:
    """What becomes of an event after an attempt that failed.

    Args:
        work: The event; the attempt is counted among its attempts if it counts.
        error: What the function raised.
        retries: Of the subscriber.
        is_timeout: Whether the function did not end in time.
        is_repeatable: Whether the event may run again although nobody knows what the attempt has done; otherwise only where the
            function says that it has done nothing.
    """
    try:
        return _after_failure(work, error, retries, is_timeout=is_timeout, is_repeatable=is_repeatable)
    except Exception as broken:  # noqa: BLE001  # its class is the user's, and what it says of itself may raise anything
        return letter(work, "failed", f"{type(error).__name__}, of which nothing can be told: {text_of(broken)}")


def _after_failure(
    work: InFlightEvent, error: BaseException, retries: Retries, *, is_timeout: bool, is_repeatable: bool
) -> ScheduledRetry | DeadLettering:
    if isinstance(error, NotDecodedError):
        return letter(work, error.bad.reason, error.bad.detail)
    if isinstance(error, Reject):
        return letter(work, "rejected", str(error), error)
    rule = retries.rule_for(error) if is_repeatable or isinstance(error, Retry) else None
    if rule is None or work.attempts >= rule.attempts:
        return letter(work, "timed-out" if is_timeout else "failed", f"{type(error).__name__}: {error}", error)
    after_ms = error.after_ms if isinstance(error, Retry) else None
    if not isinstance(after_ms, int):  # a class of the user's may have anything there
        after_ms = delay_ms(rule, work.event_id, max(1, work.attempts))
    if work.waited_ms + after_ms > LONGEST_IN_ALL_MS:
        # One rule alone never leads here: its delays are an hour at most. ``Retry``, and the rules of several errors, may.
        told = f"{type(error).__name__}: {error}, and it would have waited for more than 1 h in all"
        return letter(work, "timed-out" if is_timeout else "failed", told, error)
    return ScheduledRetry(after_ms)


def says_something_of_its_event_alone(error: BaseException, retries: Retries) -> bool:
    """Whether a failure is no sign of an outage of what the function calls."""
    return isinstance(error, (Reject, NotDecodedError)) or retries.rule_for(error) is None


def letter(work: InFlightEvent, reason: Reason, detail: str, error: BaseException | None = None) -> DeadLettering:
    """A dead letter of an event, with what its attempts have shown."""
    headers = [("event-id", work.event_id.encode()), ("attempts", str(work.attempts).encode())]
    if work.first_failed_ms:
        headers.append(("first-failed-at-ms", str(work.first_failed_ms).encode()))
    if error is not None:
        # The end of a trace says where it happened.
        trace = "".join(traceback.format_exception(error)).encode(errors="backslashreplace")[-TRACE_BYTES:]
        headers += [("exception", type(error).__qualname__.encode()), ("trace", trace)]
    return DeadLettering(reason, detail, tuple(headers))


def delay_ms(rule: Retries, event_id: str, attempt: int) -> int:
    """How long after an attempt the next one follows.

    The delay is spread between half of it and the whole by a hash of the event and the attempt: events that failed together do not
    come back together, and a test can tell when each will.

    Args:
        rule: How the event is retried.
        event_id: Id of the event.
        attempt: Number of the attempt that failed, from 1 on.
    """
    drawn = int.from_bytes(blake2b(f"{event_id}\0{attempt}".encode(), digest_size=4).digest()) / 2**32
    return round(rule.most_ms(attempt) * (0.5 + drawn / 2))


MOST_UNFINISHED: Final = 10_000
MOST_UNFINISHED_BYTES: Final = 64 * 1024 * 1024
"""With so many unfinished events, or so many bytes of them, the reader of the partition pauses; until then one that fails delays no
other."""

HEADER_BYTES: Final = 100
"""A header takes about so much beside its name and value: thousands of empty ones are not nothing."""


def sizes_of(records: Sequence[Any]) -> list[int]:
    """About how many bytes each record takes: of its key, its value and its headers."""
    sizes = [len(record.value or b"") + len(record.key or b"") for record in records]
    if any([record.headers for record in records]):
        headers = [record.headers for record in records]
        sizes = [size + header_bytes(some) + HEADER_BYTES * len(some) for size, some in zip(sizes, headers, strict=True)]
    return sizes
