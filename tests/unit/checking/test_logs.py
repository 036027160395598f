"""Findings of `check` about logs that are not the logs that were read."""

from __future__ import annotations

import pytest

from streams_app.checking.logs import changes, recreations
from streams_app.delivery.batch import TP
from streams_app.delivery.fingerprints import Fingerprint
from streams_app.delivery.log_continuity import PresentLog, StoredPosition
from streams_app.finding import Level
from streams_app.folding.agents.claim import policy_of as fold_policy
from streams_app.read_store.sync.processor import policy_of as store_policy
from streams_app.subscribers.guarantees.restored_position import policy_of as subscriber_policy

HERE = TP("orders", 1)
READ = (Fingerprint(98, 1),)


def test_reader_that_needs_a_reset_is_an_error_with_its_command() -> None:
    (finding,) = recreations(subscriber_policy("ship"), {HERE: StoredPosition(8, "old")}, {"orders": "new"})

    assert Level.ERROR is finding.level
    assert "streams-app reset --subscriber ship --at earliest" in finding.advice
    assert "orders-1 is another log than the one that subscriber ship has read: the topic was deleted and created" in finding.text


def test_reader_that_restarts_by_itself_is_a_warning() -> None:
    (finding,) = recreations(store_policy("main"), {HERE: StoredPosition(8, "old")}, {"orders": "new"})

    assert Level.WARNING is finding.level


def test_unchanged_log_and_log_without_stored_progress_are_no_finding() -> None:
    read = {HERE: StoredPosition(8, "same"), TP("orders", 2): StoredPosition(8)}

    assert [] == list(recreations(fold_policy("sums"), read, {"orders": "same"}))


@pytest.mark.parametrize(("read", "common", "from_"), [(READ, 90, 90), ((), None, 5)], ids=["fingerprints", "none"])
def test_log_that_went_back_is_reported_with_the_missing_offsets(
    read: tuple[Fingerprint, ...], common: int | None, from_: int
) -> None:
    log = PresentLog("same", 5, 95, was_reset=True)
    (finding,) = changes(fold_policy("sums"), HERE, StoredPosition(100, "same", read), log, common)

    assert Level.WARNING is finding.level
    assert f"the broker has lost what fold sums had read from offset {from_} to 99" in finding.text
    assert "created again" not in finding.text
