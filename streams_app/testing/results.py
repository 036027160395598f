"""Attempts and dead letters of subscribers, in the form in which a test kit returns them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from streams_app.local.broker import LocalRecord
from streams_app.subscribers.execution.subscriber_metrics import Attempted


@dataclass(slots=True, eq=False)
class Run:
    """One attempt: a call of a subscriber's function for one event.

    Attributes:
        attempt: Number of the attempt, starting at 1.
        outcome: ``running`` until the attempt ends. Then ``done`` if the function returned, ``retry`` if it raised ``Retry``,
            ``error`` if it raised another exception, ``timeout`` if it exceeded its time limit, ``interrupted`` if the partition
            was revoked, or ``crash`` if the process was killed.
        event_id: Id of the event.
        data: Payload of the event.
        error: The exception that the function raised; None if it raised none.
    """

    attempt: int
    outcome: Attempted | Literal["running"]
    event_id: str
    data: Any
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SubscriberDeadLetter:
    """Dead letter of a subscriber, as :meth:`.SubscriberTester.dead_letters` returns it.

    Attributes:
        reason: One of the documented reasons, such as ``failed``.
        detail: Description of the fault.
        event_id: Id of the event. If the event has no readable id, its position as ``topic:partition:offset``.
        attempts: Number of attempts; 0 if the function was not called.
        exception: Class of the last error; "" if no error was raised.
        trace: End of the traceback of that error; "" if no error was raised.
        key: Record key as received; None if the record had no key.
        value: Record value as received; None for a tombstone.
    """

    reason: str
    detail: str
    event_id: str
    attempts: int
    exception: str
    trace: str
    key: bytes | None
    value: bytes | None

    @classmethod
    def of(cls, record: LocalRecord) -> SubscriberDeadLetter:
        """Parse a record of a dead-letter topic, in which the headers of the dead letter precede those of its event."""
        headers = {name: (value or b"").decode(errors="replace") for name, value in reversed(record.headers)}
        texts = (headers.get(name, "") for name in ("reason", "detail", "event-id", "attempts", "exception", "trace"))
        reason, detail, event_id, attempts, exception, trace = texts
        return cls(reason, detail, event_id, int(attempts or 0), exception, trace, record.key, record.value)


class UnseenDeadLettersError(AssertionError):
    """Raised at the end of a test if events became dead letters that the test has not read."""

    def __init__(self, unseen: Iterable[tuple[str, SubscriberDeadLetter]]) -> None:
        """Create an error whose message lists each dead letter with its traceback."""
        lines = [
            f"{name}: {one.event_id or one.value!r} became a dead letter, {one.reason}: {one.detail}\n{one.trace}"
            for name, one in unseen
        ]
        super().__init__("\n".join(["dead letters that the test has not checked with kit.dead_letters(subscriber):", *lines]))
