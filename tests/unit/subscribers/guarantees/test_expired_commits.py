"""Kafka removes the commits of a group after a long absence; ``start`` of a subscriber applies to its first start only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streams_app import Received, Retry
from streams_app.errors import ConfigurationError
from streams_app.subscribers.state.keys import SubscriberKeys
from streams_app.subscribers.state.offset_metadata import OffsetMetadata, encoded
from streams_app.subscribers.state.offset_tracker import NOTHING
from streams_app.testing import SubscriberTester
from tests.helpers.subscribers.kit import Paid, paid, subscribed

BEFORE = ["o1", "o2", "o3"]
AWAY = ["o4", "o5"]
GOES_ON = pytest.mark.parametrize("idempotent", ["yes", "unknown"])
STARTS = pytest.mark.parametrize("start", ["latest", "earliest"])


@contextmanager
def after_absence(calls: list[str], **options: Any) -> Iterator[tuple[SubscriberTester, Any]]:
    """A subscriber that has handled three events and whose process has ended; later events wait for the next process."""

    def ship(event: Received[Paid]) -> None:
        calls.append(event.data.order_id)

    one = subscribed(ship, **options)
    with SubscriberTester(one) as kit:
        for order in BEFORE:
            kit.publish(paid, Paid(order))
        kit.advance("10s")  # so that it is committed
        kit.crash()
        for order in AWAY:
            kit.publish(paid, Paid(order))
        yield kit, one


def expire(kit: SubscriberTester) -> None:
    (group,) = kit._workers.broker.groups.values()
    group.committed.clear()


@GOES_ON
@STARTS
def test_group_without_commits_resumes_from_redis(idempotent: Any, start: Any) -> None:
    calls: list[str] = []
    with after_absence(calls, idempotent=idempotent, start=start) as (kit, _):
        expire(kit)
        kit.rebalance()
        kit.advance("10s")

    assert BEFORE + AWAY == calls


@GOES_ON
def test_events_finished_above_a_waiting_one_are_not_repeated(idempotent: Any) -> None:
    calls: list[str] = []
    release: list[bool] = []

    def ship(event: Received[Paid]) -> None:
        if event.data.order_id == "o2" and not release:
            raise Retry(after="5m")
        calls.append(event.data.order_id)

    one = subscribed(ship, idempotent=idempotent, start="latest")
    with SubscriberTester(one) as kit:
        for order in BEFORE:
            kit.publish(paid, Paid(order))
        kit.advance("10s")
        kit.crash()
        expire(kit)
        release.append(True)
        kit.rebalance()
        kit.advance("10m")

    assert ["o1", "o3", "o2"] == calls


@GOES_ON
@pytest.mark.parametrize(("start", "expected"), [("latest", BEFORE), ("earliest", [*BEFORE, *BEFORE, *AWAY])])
def test_group_without_commits_and_redis_state_starts_anew(idempotent: Any, start: Any, expected: list[str]) -> None:
    calls: list[str] = []
    with after_absence(calls, idempotent=idempotent, start=start) as (kit, _):
        expire(kit)
        kit.wipe_redis()
        kit.rebalance()
        kit.advance("10s")

    assert expected == calls


@pytest.mark.parametrize(
    ("idempotent", "start", "expected"),
    [
        ("yes", "latest", BEFORE + AWAY),
        ("yes", "earliest", [*BEFORE, *BEFORE, *AWAY]),
        ("unknown", "latest", BEFORE + AWAY),
        ("unknown", "earliest", BEFORE + AWAY),
    ],
)
def test_state_without_a_log_id_neither_skips_events_of_yes_nor_repeats_those_of_unknown(
    idempotent: Any, start: Any, expected: list[str]
) -> None:
    calls: list[str] = []
    with after_absence(calls, idempotent=idempotent, start=start) as (kit, one):
        expire(kit)
        # State as an earlier version has left it.
        keys = SubscriberKeys(kit._workers._settings.app_id, one.name, paid.key, 0)
        kit._workers.scripts._hashes[keys.state[0]]["note"] = ""
        kit.rebalance()
        kit.advance("10s")

    assert expected == calls


@GOES_ON
def test_state_of_another_log_is_not_resumed(idempotent: Any) -> None:
    calls: list[str] = []
    with after_absence(calls, idempotent=idempotent, start="latest") as (kit, one):
        expire(kit)
        keys = SubscriberKeys(kit._workers._settings.app_id, one.name, paid.key, 0)
        kit._workers.scripts._hashes[keys.state[0]]["note"] = encoded(3, OffsetMetadata("of-another-topic", NOTHING))
        with pytest.raises(ConfigurationError, match=f"streams-app reset --subscriber {one.name} --at earliest"):
            kit.rebalance()

    assert BEFORE == calls


@GOES_ON
def test_events_in_place_of_lost_ones_run_if_the_broker_has_lost_the_commits_as_well(idempotent: Any) -> None:
    """The log ends below the position in Redis: with ``latest``, a first start would skip what it has."""
    calls: list[str] = []
    with after_absence(calls, idempotent=idempotent, start="latest") as (kit, _):
        expire(kit)
        (log,) = (log for topic, log in kit._workers.broker._logs.items() if topic == paid.key)
        del log[1:]
        kit.publish(paid, Paid("new"))
        kit.rebalance()
        kit.advance("10s")

    assert [*BEFORE, "new"] == calls
