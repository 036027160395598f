"""What a test sees of subscribers: attempts and dead letters."""

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
        attempt: Number of the attempt, from 1 on.
        outcome: ``done``; ``retry``: it raised ``Retry``; ``error``: it raised something else; ``timeout``; ``interrupted``: it was
            taken back; ``crash``: its process died; ``running``.
        event_id: Id of the event.
        data: Its payload.
        error: What was raised.
    """

    attempt: int
    outcome: Attempted | Literal["running"]
    event_id: str
    data: Any
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter.

    Attributes:
        reason: Why, in one word.
        detail: What was found, for people.
        event_id: Id of the event; "" where it has none that can be read.
        attempts: How many attempts there were.
        exception: Class of what was raised last; "" where nothing was.
        trace: Where it was raised.
        key: As received.
        value: As received.
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
    def of(cls, record: LocalRecord) -> Letter:
        """A dead letter as it stands in its topic; what the letter says itself stands before the headers of its event."""
        said = {name: (value or b"").decode(errors="replace") for name, value in reversed(record.headers)}
        texts = (said.get(name, "") for name in ("reason", "detail", "event-id", "attempts", "exception", "trace"))
        reason, detail, event_id, attempts, exception, trace = texts
        return cls(reason, detail, event_id, int(attempts or 0), exception, trace, record.key, record.value)


class UnseenLettersError(AssertionError):
    """Events have become dead letters, and the test has not looked at them."""

    def __init__(self, unseen: Iterable[tuple[str, Letter]]) -> None:
        """Tells each, with where it was raised."""
        told = [
            f"{name}: {letter.event_id or letter.value!r} became a dead letter, {letter.reason}: {letter.detail}\n{letter.trace}"
            for name, letter in unseen
        ]
        super().__init__("\n".join(["dead letters that the test has not looked at by kit.dead_letters(subscriber):", *told]))
