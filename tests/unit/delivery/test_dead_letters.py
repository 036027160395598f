"""The headers and value of a dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest
from aiokafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.dead_letters import DeadLetterSender, RejectingComponent, dead_letter_of, without_content
from streams_app.delivery.producer import OutgoingRecord
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.reasons import REASONS, RECORD_TOO_LARGE, Reason
from tests.helpers.kafka.records import Raw
from tests.helpers.manual_clock import ManualClock
from tests.servers.cache import ROOT

FOLD = RejectingComponent("fold", "f", "social", "dead")


def dead_letter(
    detail: str = "why", *, key: bytes | None = b"k", value: bytes | None = b"v", addressee: str = ""
) -> OutgoingRecord:
    return dead_letter_of(FOLD, TP("s", 3), RejectedEvent(Raw(7, 1, key, value), "user-error", detail, addressee), 99)


def headers_of(record: OutgoingRecord) -> dict[str, bytes]:
    return dict(record.headers)


def test_dead_letter_names_application_fold_and_position_of_the_event() -> None:
    expected = {"app-id": b"social", "fold": b"f", "source-topic": b"s", "source-partition": b"3", "source-offset": b"7"}

    assert expected.items() <= headers_of(dead_letter()).items()


def test_dead_letter_of_an_event_replayed_for_another_fold_names_that_fold() -> None:
    assert b"old" == headers_of(dead_letter(addressee="old"))["fold"]


@pytest.mark.parametrize("detail", ["half a pair: \ud83d", "x" * 490 + "\udfff" * 9])
def test_any_error_text_can_be_the_detail(detail: str) -> None:
    encoded = headers_of(dead_letter(detail))["detail"]

    assert detail.encode(errors="backslashreplace")[:500] == encoded


def test_dead_letter_headers_say_what_was_not_stored() -> None:
    without_value = without_content(dead_letter("value of 9 bytes", value=b"large"))
    without_either = without_content(without_value)

    assert (b"k", None, b"5") == (without_value.key, without_value.value, headers_of(without_value)["value-bytes-not-kept"])
    assert (None, b"5", b"1") == (
        without_either.key,
        headers_of(without_either)["value-bytes-not-kept"],
        headers_of(without_either)["key-bytes-not-kept"],
    )
    assert b"value of 9 bytes; value of 5 bytes not kept; key of 1 bytes not kept" == headers_of(without_either)["detail"]


class Broker:
    """A producer that gives scripted outcomes, one a call, and keeps the dead letters."""

    def __init__(self, *answers: list[BaseException | None]) -> None:
        self.answers = list(answers)
        self.sent: list[list[OutgoingRecord]] = []

    async def send(self, records: Sequence[OutgoingRecord]) -> list[BaseException | None]:
        self.sent.append(list(records))
        return self.answers.pop(0)


async def test_retry_resends_only_unacknowledged_dead_letters_and_keeps_truncation() -> None:
    too_large, away = MessageSizeTooLargeError(), KafkaTimeoutError()
    broker = Broker([None, too_large, away], [away], [None, None])
    kept: list[Reason] = []
    dead_letters = DeadLetterSender(FOLD, TP("s", 3), broker, TrustedClock(ManualClock()), lambda _, reason: kept.append(reason))
    await dead_letters.send([RejectedEvent(Raw(offset, 1, b"k", b"v%d" % offset), "user-error", "why") for offset in range(3)])

    assert [[b"v0", b"v1", b"v2"], [None], [b"v2", None]] == [[dead_letter.value for dead_letter in sent] for sent in broker.sent]
    assert ["user-error"] * 3 == kept


def test_reasons_table_lists_the_reason_literals_in_order() -> None:
    assert list(get_args(Reason)) == list(REASONS)


def test_every_reason_in_the_table_is_used() -> None:
    sources = [path.read_text("utf-8") for path in Path(ROOT, "streams_app").rglob("*.py") if path.name != "reasons.py"]
    given = {reason for reason in REASONS if any(f'"{reason}"' in source for source in sources)} | {RECORD_TOO_LARGE}

    assert REASONS.keys() == given
