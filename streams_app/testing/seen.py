"""Attempts and dead letters of subscribers, as a test sees them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from streams_app.local.broker import LocalRecord
from streams_app.subscribers.execution.subscriber_metrics import Attempted


@dataclass(slots=True, eq=False)
class Run:
    """One attempt of a function.

    Attributes:
        attempt: Number of the attempt, starting at 1.
        outcome: ``done``; ``retry``: it raised ``Retry``; ``error``: it raised something else; ``timeout``; ``interrupted``: its
            partition was revoked; ``crash``: its process died; ``running``.
        event_id: Id of the event.
        data: Payload of the event.
        error: The raised error.
    """

    attempt: int
    outcome: Attempted | Literal["running"]
    event_id: str
    data: Any
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SubscriberDeadLetter:
    """A dead letter.

    Attributes:
        reason: The reason, one word.
        detail: What is wrong, as text.
        event_id: Id of the event; "" if it has no readable one.
        attempts: Number of attempts.
        exception: Class of the last error; "" if there was none.
        trace: Traceback of that error.
        key: Key as received.
        value: Value as received.
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
        """Parse a dead letter as its topic has it; its own headers come before those of its event."""
        said = {name: (value or b"").decode(errors="replace") for name, value in reversed(record.headers)}
        texts = (said.get(name, "") for name in ("reason", "detail", "event-id", "attempts", "exception", "trace"))
        reason, detail, event_id, attempts, exception, trace = texts
        return cls(reason, detail, event_id, int(attempts or 0), exception, trace, record.key, record.value)


class UnseenDeadLettersError(AssertionError):
    """Events became dead letters that the test has not read."""

    def __init__(self, unseen: Iterable[tuple[str, SubscriberDeadLetter]]) -> None:
        """List each dead letter with its traceback."""
        lines = [
            f"{name}: {one.event_id or one.value!r} became a dead letter, {one.reason}: {one.detail}\n{one.trace}"
            for name, one in unseen
        ]
        super().__init__("\n".join(["dead letters that the test has not looked at by kit.dead_letters(subscriber):", *lines]))
