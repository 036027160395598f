"""Sends dead letters: the fence passes a rejected record only after the broker has acknowledged its dead letter.

A processor calls :meth:`DeadLetterSender.send` before it writes the fence of a range. After a crash in between, the next owner
rejects the record again, and its dead letter appears twice. Key and value of a dead letter are as received, unless they are too
large for the topic. The headers hold the reason and the source position of the record, as text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from aiokafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.producer import TOO_LARGE, OutgoingRecord, Producer
from streams_app.delivery.rejected_event import NOT_KEPT, RejectedEvent
from streams_app.errors import text_of
from streams_app.reasons import Reason
from streams_app.reported_backoff import ReportedBackoff
from streams_app.retries import retried

logger = logging.getLogger(__name__)

DETAIL_BYTES = 500

EncodedDeadLetter: TypeAlias = tuple[Reason, OutgoingRecord]
"""The reason of a rejection, and its dead letter."""


class RejectingComponent(NamedTuple):
    """The component that rejects records, as the headers of its dead letters identify it.

    A dead letter has a header with the name of the ``kind`` (``fold``, ``store``, ``subscriber`` or ``view``), whose value is the
    name of the component: other components may have accepted the same record. Other applications than ``app_id`` may use the same
    names and the same dead-letter topic.
    """

    kind: str
    name: str
    app_id: str
    topic: str


class _UnacknowledgedError(Exception):
    """The broker has not acknowledged some dead letters; ``cause`` is the error of one of them."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


@dataclass(frozen=True, slots=True)
class DeadLetterSender:
    """Sends the dead letters of one processor, and waits for their acknowledgement.

    Attributes:
        on_kept: Called for each acknowledged dead letter, with the name of the component and the reason.
    """

    component: RejectingComponent
    source: TP
    producer: Producer
    clock: TrustedClock
    on_kept: Callable[[str, Reason], None]

    async def send(self, rejected: Sequence[RejectedEvent], on_failed: Callable[[str, BaseException], None] | None = None) -> None:
        """Send dead letters; retry until the broker has acknowledged all of them.

        After each attempt in which a dead letter was not acknowledged, ``on_failed`` is called with the dead-letter topic and the
        error.
        """
        backoff = ReportedBackoff(first_seconds=0.1, longest_seconds=1.0)
        dead_letters = self._encoded(rejected)

        async def send() -> None:
            nonlocal dead_letters
            dead_letters, failed = await self._send(dead_letters)
            if failed is not None:
                raise _UnacknowledgedError(failed)

        async def reported(error: _UnacknowledgedError) -> float:
            if on_failed is not None:
                on_failed(self.component.topic, error.cause)
            if backoff.should_report:
                logger.warning(
                    "dead letters not acknowledged, trying again %s=%s source=%s count=%d error=%r",
                    self.component.kind, self.component.name, self.source, len(dead_letters), error.cause,
                )  # fmt: skip
            return backoff.failed()

        await retried(send, _UnacknowledgedError, reported)
        if backoff.succeeded():
            logger.info("dead letters acknowledged again %s=%s source=%s", self.component.kind, self.component.name, self.source)

    async def send_once(self, rejected: Sequence[RejectedEvent]) -> BaseException | None:
        """Send dead letters once; return None if all are acknowledged, else the error of one that is not."""
        _, failed = await self._send(self._encoded(rejected))
        return failed

    def _encoded(self, rejected: Sequence[RejectedEvent]) -> list[EncodedDeadLetter]:
        now_ms = self.clock.now_ms()
        return [(one.reason, dead_letter_of(self.component, self.source, one, now_ms)) for one in rejected]

    async def _send(self, dead_letters: Sequence[EncodedDeadLetter]) -> tuple[list[EncodedDeadLetter], BaseException | None]:
        """Send dead letters. One that is too large for its topic is sent without its content: its headers still locate the record.

        Return the dead letters that were not acknowledged, so that the caller sends them again, and the error of one of them.
        """
        waiting, unsent = list(dead_letters), list[EncodedDeadLetter]()
        failed: BaseException | None = None
        while waiting:
            outcomes = await self.producer.send([dead_letter for _, dead_letter in waiting])
            smaller: list[EncodedDeadLetter] = []
            for (reason, dead_letter), outcome in zip(waiting, outcomes, strict=True):
                if outcome is None:
                    self.on_kept(self.component.name, reason)
                elif isinstance(outcome, TOO_LARGE) and (dead_letter.key or dead_letter.value):
                    logger.error("a rejected event is too large for %s and is kept without its content", dead_letter.topic)
                    smaller.append((reason, without_content(dead_letter)))
                else:
                    unsent.append((reason, dead_letter))
                    failed = outcome
            waiting = smaller
        return unsent, failed


def dead_letter_of(component: RejectingComponent, source: TP, rejected: RejectedEvent, now_ms: int) -> OutgoingRecord:
    """Build the dead letter of a rejected record: key and value as received, reason and source position as headers."""
    headers = [
        ("reason", rejected.reason.encode()),
        (component.kind, (rejected.addressee or component.name).encode()),
        ("source-topic", source.topic.encode()),
        ("source-partition", str(source.partition).encode()),
        ("source-offset", str(rejected.record.offset).encode()),
        ("failed-at-ms", str(now_ms).encode()),
        # The error of a user's function may contain a lone surrogate, which UTF-8 cannot encode.
        ("detail", rejected.detail.encode(errors="backslashreplace")[:DETAIL_BYTES]),
        ("app-id", component.app_id.encode()),
        *rejected.headers,
    ]
    return OutgoingRecord(component.topic, rejected.record.key, rejected.record.value, headers)


def without_content(dead_letter: OutgoingRecord) -> OutgoingRecord:
    """Return a dead letter without its value or, if it has none, without its key.

    Use it if the topic has a lower size limit than the source. The size of the removed part is added to the header ``detail``, and
    is the value of an additional header (see :data:`.NOT_KEPT`).
    """
    what, dropped = ("value", dead_letter.value) if dead_letter.value else ("key", dead_letter.key or b"")
    suffix = f"; {what} of {len(dropped)} bytes not kept".encode()
    headers = [(name, value + suffix if name == "detail" else value) for name, value in dead_letter.headers]
    headers.append((NOT_KEPT[what], str(len(dropped)).encode()))
    return dead_letter._replace(key=dead_letter.key if dead_letter.value else None, value=None, headers=headers)


def unacknowledged_text(topic: str, error: BaseException) -> str:
    """Describe why a topic does not acknowledge dead letters, with the remedy if it is known."""
    if isinstance(error, UnknownTopicOrPartitionError):
        return f"its dead-letter topic {topic!r} does not exist: create it with `streams-app topics create`"
    if isinstance(error, TopicAuthorizationFailedError):
        return f"its dead-letter topic {topic!r} must not be written to: this worker needs the right WRITE on it"
    return f"its dead-letter topic {topic!r} does not acknowledge dead letters: {text_of(error)}"
