"""Decides what follows a failed attempt: a retry of its event, delayed with jitter, or a dead letter (pure)."""

from __future__ import annotations

import traceback
from hashlib import blake2b
from typing import Final, NamedTuple

from streams_app.errors import NotDecodedError, text_of
from streams_app.formatting import milliseconds
from streams_app.reasons import Reason
from streams_app.subscribers.declaration.received import Reject, Retry
from streams_app.subscribers.declaration.retries import LONGEST_IN_ALL, Retries
from streams_app.subscribers.execution.in_flight_event import InFlightEvent

MAX_CRASHES: Final = 3
"""An event becomes a dead letter after its process has crashed this many times during attempts of the event."""


TRACE_BYTES: Final = 2_000


LONGEST_IN_ALL_MS: Final = milliseconds(LONGEST_IN_ALL)


class ScheduledRetry(NamedTuple):
    """Decision to retry an event after ``after_ms``."""

    after_ms: int


class DeadLettering(NamedTuple):
    """Decision to dead-letter an event."""

    reason: Reason
    detail: str
    headers: tuple[tuple[str, bytes], ...] = ()


def after_failure(
    event: InFlightEvent, error: BaseException, retries: Retries, *, is_timeout: bool, is_repeatable: bool = True
) -> ScheduledRetry | DeadLettering:
    """Decide whether an event is retried or dead-lettered after a failed attempt.

    Args:
        event: The event; its ``attempts`` include the failed attempt.
        error: The exception that the function raised, or an error that describes the time-out.
        is_repeatable: Whether the event may run a second time although the effect of the attempt is unknown. If not, it is retried
            only after :class:`Retry`.
    """
    try:
        return _after_failure(event, error, retries, is_timeout=is_timeout, is_repeatable=is_repeatable)
    except Exception as broken:  # noqa: BLE001  # the class is the user's, and its __str__ may raise anything
        return dead_lettering(event, "failed", f"{type(error).__name__}, whose state is unknown: {text_of(broken)}")


def _after_failure(
    event: InFlightEvent, error: BaseException, retries: Retries, *, is_timeout: bool, is_repeatable: bool
) -> ScheduledRetry | DeadLettering:
    if isinstance(error, NotDecodedError):
        return dead_lettering(event, error.bad.reason, error.bad.detail)
    if isinstance(error, Reject):
        return dead_lettering(event, "rejected", str(error), error)
    rule = retries.rule_for(error) if is_repeatable or isinstance(error, Retry) else None
    if rule is None or event.attempts >= rule.attempts:
        return dead_lettering(event, "timed-out" if is_timeout else "failed", f"{type(error).__name__}: {error}", error)
    after_ms = error.after_ms if isinstance(error, Retry) else None
    if not isinstance(after_ms, int):  # a subclass of the user's may set it to anything
        after_ms = delay_ms(rule, event.event_id, max(1, event.attempts))
    if event.waited_ms + after_ms > LONGEST_IN_ALL_MS:
        # The delays of one rule take at most an hour together. Those of ``Retry``, or of rules for several errors, may take longer.
        text = f"{type(error).__name__}: {error}, and it would have waited for more than 1 h in all"
        return dead_lettering(event, "timed-out" if is_timeout else "failed", text, error)
    return ScheduledRetry(after_ms)


def concerns_event_alone(error: BaseException, retries: Retries) -> bool:
    """Return whether a failure is caused by its event alone, and so does not indicate an outage."""
    return isinstance(error, (Reject, NotDecodedError)) or retries.rule_for(error) is None


def dead_lettering(event: InFlightEvent, reason: Reason, detail: str, error: BaseException | None = None) -> DeadLettering:
    """Return the decision to dead-letter an event, with headers that contain its id, its number of attempts and its last error."""
    headers = [("event-id", event.event_id.encode()), ("attempts", str(event.attempts).encode())]
    if event.first_failed_ms:
        headers.append(("first-failed-at-ms", str(event.first_failed_ms).encode()))
    if error is not None:
        # The end of a traceback shows where the error was raised.
        trace = "".join(traceback.format_exception(error)).encode(errors="backslashreplace")[-TRACE_BYTES:]
        headers += [("exception", type(error).__qualname__.encode()), ("trace", trace)]
    return DeadLettering(reason, detail, tuple(headers))


def delay_ms(rule: Retries, event_id: str, attempt: int) -> int:
    """Return the delay between an attempt and the next one, in ms.

    The delay lies between half of ``rule.max_ms(attempt)`` and all of it. A hash of the event id and the attempt determines where:
    events that failed together are not retried together, and a test can predict each delay.
    """
    drawn = int.from_bytes(blake2b(f"{event_id}\0{attempt}".encode(), digest_size=4).digest()) / 2**32
    return round(rule.max_ms(attempt) * (0.5 + drawn / 2))
