"""Dead letters before the fence: what a processor refuses is acknowledged by the broker before its fence passes it.

A processor calls :meth:`DeadLetters.send` before it writes the fence of a range. A crash in between leaves the fence below what was
refused: the next owner refuses it again, and its letter is there twice. Key and value of a letter are as received; the reason and
the place of the record in its source are in the headers, as text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from aiokafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from streams_app.backoff import Backoff
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.producer import TOO_LARGE, Outgoing, Producer
from streams_app.delivery.rejected_event import NOT_KEPT, RejectedEvent
from streams_app.errors import text_of
from streams_app.reasons import Reason

logger = logging.getLogger(__name__)

DETAIL_BYTES = 500

Letter: TypeAlias = tuple[Reason, Outgoing]
"""Why a record was refused, and its dead letter."""


class Refuser(NamedTuple):
    """Whoever refuses records, as its letters name it.

    Attributes:
        kind: What it is: the header under which its name stands.
        name: Its name; another one may have taken the same record.
        app_id: Its application; another one may have the same names and the same dead-letter topic.
        topic: Where its letters go.
    """

    kind: str
    name: str
    app_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of one processor.

    Attributes:
        refuser: Who refuses.
        source: The partition of the refused records.
        producer: Produces them.
        clock: Says when it was.
        on_kept: Called with the name of the refuser and the reason for each letter that the broker has.
    """

    refuser: Refuser
    source: TP
    producer: Producer
    clock: TrustedClock
    on_kept: Callable[[str, Reason], None]

    async def send(self, refused: Sequence[RejectedEvent], on_failed: Callable[[str, BaseException], None] | None = None) -> None:
        """Returns when the broker has every letter; a broker that is away is waited for, and sent only what it does not have.

        Args:
            refused: What was refused.
            on_failed: Called with the topic of the letters and the error whenever some were not acknowledged.
        """
        backoff = Backoff(first_seconds=0.1, longest_seconds=1.0)
        letters, failed = await self._send(self._encoded(refused))
        while failed is not None:
            if on_failed is not None:
                on_failed(self.refuser.topic, failed)
            if not backoff.failures:
                logger.warning(
                    "dead letters not acknowledged, trying again %s=%s source=%s count=%d error=%r",
                    self.refuser.kind, self.refuser.name, self.source, len(letters), failed,
                )  # fmt: skip
            await asyncio.sleep(backoff.failed())
            letters, failed = await self._send(letters)

    async def send_once(self, refused: Sequence[RejectedEvent]) -> BaseException | None:
        """Sends letters; returns an error of the producer where one of them is not acknowledged."""
        _, failed = await self._send(self._encoded(refused))
        return failed

    def _encoded(self, refused: Sequence[RejectedEvent]) -> list[Letter]:
        now_ms = self.clock.now_ms()
        return [(one.reason, letter_of(self.refuser, self.source, one, now_ms)) for one in refused]

    async def _send(self, letters: Sequence[Letter]) -> tuple[list[Letter], BaseException | None]:
        """Sends letters; one that its topic will never take for its size goes without its content: its headers say where it was.

        Returns:
            The letters that are not acknowledged, each as it is to be sent next, and an error of the producer.
        """
        waiting, unsent = list(letters), list[Letter]()
        failed: BaseException | None = None
        while waiting:
            outcomes = await self.producer.send([letter for _, letter in waiting])
            smaller: list[Letter] = []
            for (reason, letter), outcome in zip(waiting, outcomes, strict=True):
                if outcome is None:
                    self.on_kept(self.refuser.name, reason)
                elif isinstance(outcome, TOO_LARGE) and (letter.key or letter.value):
                    logger.error("a refused event is too large for %s and is kept without its content", letter.topic)
                    smaller.append((reason, without_content(letter)))
                else:
                    unsent.append((reason, letter))
                    failed = outcome
            waiting = smaller
        return unsent, failed


def letter_of(refuser: Refuser, source: TP, refused: RejectedEvent, now_ms: int) -> Outgoing:
    """The dead letter of a record.

    Args:
        refuser: Who refuses it.
        source: Partition of the record.
        refused: The record and the reason.
        now_ms: Wall clock.
    """
    headers = [
        ("reason", refused.reason.encode()),
        (refuser.kind, (refused.addressee or refuser.name).encode()),
        ("source-topic", source.topic.encode()),
        ("source-partition", str(source.partition).encode()),
        ("source-offset", str(refused.record.offset).encode()),
        ("failed-at-ms", str(now_ms).encode()),
        # An error of a user's function may quote half a surrogate pair.
        ("detail", refused.detail.encode(errors="backslashreplace")[:DETAIL_BYTES]),
        ("app-id", refuser.app_id.encode()),
        *refused.headers,
    ]
    return Outgoing(refuser.topic, refused.record.key, refused.record.value, headers)


def without_content(letter: Outgoing) -> Outgoing:
    """The same letter without its value, then without its key, for a topic that takes less than the source.

    How large they were is in a header of its own, and for people in the detail.
    """
    what, lost = ("value", letter.value) if letter.value else ("key", letter.key or b"")
    told = f"; {what} of {len(lost)} bytes not kept".encode()
    headers = [(name, value + told if name == "detail" else value) for name, value in letter.headers]
    headers.append((NOT_KEPT[what], str(len(lost)).encode()))
    return letter._replace(key=letter.key if letter.value else None, value=None, headers=headers)


def unacknowledged_text(topic: str, error: BaseException) -> str:
    """Say why a topic does not acknowledge dead letters, and what to do about it if that is known."""
    if isinstance(error, UnknownTopicOrPartitionError):
        return f"its dead-letter topic {topic!r} does not exist: create it with `streams-app topics create`"
    if isinstance(error, TopicAuthorizationFailedError):
        return f"its dead-letter topic {topic!r} must not be written to: this worker needs the right WRITE on it"
    return f"its dead-letter topic {topic!r} does not acknowledge dead letters: {text_of(error)}"
