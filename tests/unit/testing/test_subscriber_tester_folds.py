"""Folds that are connected to the test kit of subscribers."""

from __future__ import annotations

import pytest

from streams_app import Event, Fold, records_of
from streams_app.testing import FoldTester, SubscriberTester
from tests.helpers.subscribers.kit import AccountChanged, subscribed

FOLD = Fold(name="account-metrics", source="updates", group_key="account_id", changed="metrics", quiet_period="15m")
updated = Event("metric.updated", AccountChanged, description="It changed.", topic="updates", keyed_by="account_id")


def test_records_of_a_fold_reach_its_subscribers() -> None:
    seen = []
    one = subscribed(
        lambda event: seen.append((event.data.metrics, event.fold and event.fold.events, event.key)),
        records_of("account-metrics", AccountChanged),
    )
    with SubscriberTester(one) as kit:
        fold = kit.connect(FoldTester(FOLD))
        fold.send({"account_id": "a", "metrics": ["likes"]})
        kit.advance("10m")
        fold.send({"account_id": "a", "metrics": ["shares"]})
        kit.advance("14m")
        assert [] == seen
        kit.advance("2m")

    assert [(["likes", "shares"], 2, "a")] == seen


def test_published_event_is_folded_unchanged() -> None:
    seen = []
    one = subscribed(lambda event: seen.append(event.data), records_of("account-metrics", AccountChanged))
    with SubscriberTester(one) as kit:
        kit.connect(FoldTester(FOLD))
        kit.publish(updated, AccountChanged("a", ["likes"]))
        kit.advance("16m")

    assert [AccountChanged("a", ["likes"])] == seen


def test_connected_fold_shares_the_clock_of_the_tester() -> None:
    one = subscribed(lambda event: None, records_of("account-metrics", AccountChanged))
    with SubscriberTester(one) as kit:
        fold = kit.connect(FoldTester(FOLD))
        with pytest.raises(RuntimeError, match="advance that one"):
            fold.advance("1m")
        used = FoldTester(FOLD)
        used.send({"account_id": "a", "metrics": []})
        with pytest.raises(ValueError, match="connect it first"):
            kit.connect(used)


def test_fold_record_can_be_created_by_hand() -> None:
    seen = []
    source = records_of("account-metrics", AccountChanged)
    one = subscribed(lambda event: seen.append((event.data, event.key, event.fold and event.fold.id == event.id)), source)
    with SubscriberTester(one) as kit:
        kit.publish(source, AccountChanged("a", ["likes"]), group="a")

    assert [(AccountChanged("a", ["likes"]), "a", True)] == seen
