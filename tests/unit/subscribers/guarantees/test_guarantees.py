"""The delivery guarantees, by the test kit: which events run twice, which become dead letters, and what does not block others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import AsyncMock, MagicMock

import msgspec
import pytest

from streams_app import Event, Received, Retry, subscriber
from streams_app.delivery.batch import TP
from streams_app.delivery.claim import ImpossibleClaimError, LogBounds
from streams_app.delivery.producer import OutgoingRecord
from streams_app.subscribers.running.processor import SubscriberProcessor
from streams_app.testing import SubscriberTester

NEVER_TWICE = pytest.mark.parametrize("idempotent", ["unknown", "no"])


class Paid(msgspec.Struct, frozen=True):
    order_id: str


paid = Event("order.paid", Paid, description="Paid.", keyed_by="order_id")


def recording(idempotent: Literal["yes", "unknown", "no"], calls: list[str], *, wait: str = "1s", **options: Any) -> Any:
    """Return a subscriber that records its calls."""

    def ship(event: Received[Paid]) -> None:
        calls.append(f"{event.data.order_id} {event.attempt}")
        if event.data.order_id == "waits" and event.attempt == 1:
            raise Retry(after=wait)
        if event.data.order_id == "fails":
            raise ConnectionError("the carrier is away")

    return subscriber(paid, idempotent=idempotent, description="Ships.", **options)(ship)


@NEVER_TWICE
def test_event_published_twice_is_called_once(idempotent: Any) -> None:
    calls: list[str] = []
    one = recording(idempotent, calls)
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"), event_id="e1")
        kit.publish(paid, Paid("o1"), event_id="e1")
        kit.rebalance()

    assert ["o1 1"] == calls


@NEVER_TWICE
@pytest.mark.parametrize("is_wiped", [False, True])
def test_events_of_two_sources_with_one_id_are_both_called_and_their_duplicates_are_not(idempotent: Any, is_wiped: bool) -> None:
    calls: list[str] = []
    one = recording(idempotent, calls)

    def publish(order_id: str, source: bytes) -> None:
        headers = [("ce_id", b"1"), ("ce_type", b"order.paid"), ("ce_source", source)]
        kit._workers.broker.append(OutgoingRecord("order.paid", None, b'{"order_id": "%s"}' % order_id.encode(), headers))
        kit.advance("1s")

    with SubscriberTester(one) as kit:
        publish("eu", b"/eu")
        publish("us", b"/us")
        if is_wiped:
            kit.wipe_redis()
        kit.rebalance()
        publish("eu again", b"/eu")
        publish("us again", b"/us")
        publish("nowhere", b"")

    assert ["eu 1", "us 1", "nowhere 1"] == calls


@NEVER_TWICE
@pytest.mark.parametrize("at", ["begun", "done"])
def test_event_interrupted_by_a_crash_is_a_dead_letter_without_a_second_call(idempotent: Any, at: Any) -> None:
    calls: list[str] = []
    one = recording(idempotent, calls)
    with SubscriberTester(one) as kit:
        kit.crash(at=at)
        kit.publish(paid, Paid("o1"))
        kit.publish(paid, Paid("o2"))
        kit.rebalance()

        assert ["interrupted"] == [dead_letter.reason for dead_letter in kit.dead_letters(one)]
        assert ["o2 1"] == [call for call in calls if call != "o1 1"]
        assert calls.count("o1 1") <= 1


@pytest.mark.parametrize("is_wiped", [False, True])
def test_success_after_an_unnoticed_rebalance_is_a_dead_letter_only_if_redis_has_lost_it(is_wiped: bool) -> None:
    calls: list[str] = []
    kits: list[SubscriberTester] = []

    def ship(event: Received[Paid]) -> None:
        calls.append(event.data.order_id)
        if event.data.order_id == "o2":
            # The group has moved on without this process, which does not know it yet.
            (group,) = kits[0]._workers.broker.groups.values()
            group.give("another")

    one = subscriber(paid, idempotent="no", description="Ships.")(ship)
    with SubscriberTester(one) as kit:
        kits.append(kit)
        for order in ("o1", "o2"):
            kit.publish(paid, Paid(order))
        if is_wiped:
            kit.wipe_redis()
        kit.rebalance()

        keys = {dead_letter.reason: dead_letter.key for dead_letter in kit.dead_letters(one)}
    assert ({"finished-late": b"o2", "interrupted": b"o2"} if is_wiped else {}) == keys
    assert ["o1", "o2"] == calls


async def test_partition_without_a_commit_is_not_claimed_for_at_most_once() -> None:
    declared = SimpleNamespace(name="ship", start="earliest", ordered=None, is_repeatable=False, requires_commit=True)
    context: Any = MagicMock(replays_topic="", subscriber=declared)
    context.store.return_value.progress = AsyncMock(return_value=None)
    claim: Any = MagicMock(tp=TP("orders", 0), committed=None, log_bounds=LogBounds(0, 9, 0), topic_id="", commit_now=AsyncMock())
    with pytest.raises(ImpossibleClaimError, match="has no commit of subscriber 'ship'"):
        await SubscriberProcessor(claim.tp, context, lambda partition: pytest.fail("it was claimed")).claim(claim)


@NEVER_TWICE
def test_attempt_is_retried_only_if_it_reports_no_effect(idempotent: Any) -> None:
    calls: list[str] = []
    one = recording(idempotent, calls)
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("waits"))
        kit.publish(paid, Paid("fails"))
        kit.advance("1m")

        assert ["failed"] == [dead_letter.reason for dead_letter in kit.dead_letters(one)]
    assert ["fails 1", "waits 1", "waits 2"] == sorted(calls)


@pytest.mark.parametrize("idempotent", ["yes", "unknown", "no"])
def test_event_waiting_for_its_next_attempt_does_not_stop_the_reader(idempotent: Any) -> None:
    calls: list[str] = []
    one = recording(idempotent, calls, wait="30s")
    with SubscriberTester(one) as kit:
        for order in ("waits", "o2", "o3", "o4"):
            kit.publish(paid, Paid(order))
            kit.advance("1s")
        before_it_is_due = list(calls)
        kit.advance("1m")

    assert ["waits 1", "o2 1", "o3 1", "o4 1"] == before_it_is_due
    assert [*before_it_is_due, "waits 2"] == calls


def test_wiped_redis_does_not_affect_at_most_once() -> None:
    calls: list[str] = []
    one = recording("no", calls)
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"), event_id="e1")
        kit.wipe_redis()
        kit.publish(paid, Paid("o1"), event_id="e1")
        kit.crash()
        kit.wipe_redis()
        kit.rebalance()
        kit.publish(paid, Paid("o1"), event_id="e1")
        kit.publish(paid, Paid("o2"))
        kit.advance("1m")

    assert ["o1 1", "o2 1"] == calls


def test_full_commit_metadata_is_awaited_and_reported_until_the_lowest_event_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.subscribers.guarantees.at_most_once.MAX_METADATA_BYTES", 200)
    called = []

    async def ship(event: Received[Paid]) -> None:
        called.append(event.data.order_id)
        # Every other event ends at once: the metadata contains an interval for each of them until the lowest has ended.
        await asyncio.sleep(30 * (1 - int(event.data.order_id) % 2))

    one = subscriber(paid, idempotent="no", description="Ships.", concurrency=100, timeout="1m")(ship)
    with SubscriberTester(one) as kit:
        for number in range(100):
            kit.publish(paid, Paid(str(number)))
        kit.advance("1s")
        begun, full = len(called), _waits_of(kit)
        kit.advance("15m")
        room = _waits_of(kit)

    assert (True, {"note"}, set()) == (0 < begun < 100, full, room)
    assert 100 == len(called)


def _waits_of(kit: SubscriberTester) -> set[str]:
    """Return what the subscriber waits for, according to its gauge."""
    ((_, served),) = kit._workers.owner._local._served
    return {what for status in served.dispatcher.statuses() for what in status.waits_for}
