"""Crashes, Redis wipes, rebalances and frozen processes in the test kit of subscribers, for each delivery guarantee."""

from __future__ import annotations

import asyncio

import pytest

from streams_app import Received, Retries
from streams_app.testing import SubscriberTester
from tests.helpers.subscribers.kit import Paid, paid, seen_by, subscribed


def test_started_event_of_a_killed_process_runs_in_the_next_one() -> None:
    done = []
    one = subscribed(lambda event: done.append(event.attempt))
    with SubscriberTester(one) as kit:
        kit.crash(at="begun")
        kit.publish(paid, Paid("o1"))
        assert ([(1, "crash")], []) == (seen_by(kit, one), done)
        kit.advance("1m")

        assert ([(1, "crash"), (2, "done")], [2]) == (seen_by(kit, one), done)


def test_event_whose_process_is_killed_after_its_function_returned_is_repeated() -> None:
    done = []
    one = subscribed(lambda event: done.append(event.attempt))
    with SubscriberTester(one) as kit:
        kit.crash(at="done")
        kit.publish(paid, Paid("o1"))
        kit.rebalance()

        assert ([(1, "crash"), (2, "done")], [1, 2]) == (seen_by(kit, one), done)


def test_crash_applies_to_the_named_subscriber() -> None:
    one, other = subscribed(lambda event: None), subscribed(lambda event: None, name="tell")
    with SubscriberTester(one, other) as kit:
        kit.crash(at="begun", of=other)
        kit.publish(paid, Paid("o1"))
        kit.advance("1m")

        assert [(1, "crash"), (2, "done")] == seen_by(kit, other)


def test_event_that_kills_its_process_three_times_becomes_a_dead_letter() -> None:
    one = subscribed(lambda event: None)
    with SubscriberTester(one) as kit:
        kit.crash(at="begun")
        kit.publish(paid, Paid("o1"))
        for _ in range(2):
            kit.crash(at="begun")
            kit.rebalance()
        kit.rebalance()

        assert [(1, "crash"), (2, "crash"), (3, "crash")] == seen_by(kit, one)
        assert ["crashed"] == [dead_letter.reason for dead_letter in kit.dead_letters(one)]


def test_wiped_redis_resets_the_attempt_count() -> None:
    def ship(event: Received[Paid]) -> None:
        if not is_well:
            raise ConnectionError("the carrier is away")

    is_well = False
    one = subscribed(ship, retry=Retries(attempts=5, first="10s"))
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("12s")
        kit.crash()
        kit.wipe_redis()
        is_well = True
        kit.rebalance()

        assert [(1, "error"), (2, "error"), (1, "done")] == seen_by(kit, one)


def test_attempt_count_survives_a_crash_without_a_wipe() -> None:
    def ship(event: Received[Paid]) -> None:
        raise ConnectionError("the carrier is away")

    one = subscribed(ship, retry=Retries(attempts=3, first="10s"))
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("12s")
        kit.crash()
        kit.advance("2m")

        assert [(1, "error"), (2, "error"), (3, "error")] == seen_by(kit, one)
        assert 3 == kit.dead_letters(one)[0].attempts


def test_rebalance_cancels_and_repeats_a_running_attempt() -> None:
    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(60 if event.attempt == 1 and not kit.runs(one)[1:] else 0)  # virtual time

    one = subscribed(ship, timeout="2m")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.rebalance()

        assert [(1, "interrupted"), (1, "done")] == seen_by(kit, one)


@pytest.mark.parametrize(
    ("idempotent", "seconds", "outcomes"),
    [("yes", 5, ["interrupted", "running"]), ("unknown", 8, ["done"]), ("no", 8, ["done"])],
)
def test_rebalance_waits_five_seconds_for_repeatable_attempts_and_until_its_timeout_for_others(
    idempotent: str, seconds: int, outcomes: list[str]
) -> None:
    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(8)  # virtual time

    one = subscribed(ship, idempotent=idempotent, timeout="10s")
    with SubscriberTester(one) as kit:
        begin = kit.now
        kit.publish(paid, Paid("o1"))
        kit.rebalance()

        assert (seconds, outcomes) == ((kit.now - begin).total_seconds(), [run.outcome for run in kit.runs(one)])


def test_finished_event_is_not_repeated_by_the_next_owner() -> None:
    async def ship(event: Received[Paid]) -> None:
        if event.data.order_id == "slow":
            await asyncio.sleep(100)  # virtual time

    one = subscribed(ship, timeout="2m")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("slow"))
        kit.publish(paid, Paid("quick"))
        kit.advance("5s")
        kit.crash()
        kit.advance("1m")

        assert [("slow", "crash"), ("quick", "done"), ("slow", "running")] == [
            (run.data.order_id, run.outcome) for run in kit.runs(one)
        ]


def test_event_of_a_process_frozen_beyond_its_session_runs_in_another_one() -> None:
    done = []

    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(3)  # virtual time
        done.append(kit.now.second)

    one = subscribed(ship, timeout="2m")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.freeze("40s")
        kit.publish(paid, Paid("o2"))
        kit.advance("10s")

        assert 2 == sum(run.data.order_id == "o1" for run in kit.runs(one))
        assert 1 == sum(run.data.order_id == "o2" for run in kit.runs(one))
        # The first attempt is that of the new owner; the frozen process ends its own attempt when it continues.
        assert (True, [40, 43]) == (done[0] < 40, done[1:])


def test_briefly_frozen_process_continues_by_itself() -> None:
    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(15)  # virtual time

    one = subscribed(ship)
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.freeze("5s")
        kit.advance("1m")

        assert [(1, "done")] == seen_by(kit, one)


def test_process_that_returns_too_late_commits_nothing() -> None:
    async def ship(event: Received[Paid]) -> None:
        if event.data.order_id == "slow" and len(kit.runs(one)) == 2:
            await asyncio.sleep(100)  # virtual time

    one = subscribed(ship, timeout="3m")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("quick"))
        kit.publish(paid, Paid("slow"))
        kit.freeze("40s")
        ran = len(kit.runs(one))
        kit.advance("2m")
        kit.rebalance()

        assert 4 == ran == len(kit.runs(one))
        # What the late process still ran was revoked.
        assert ["done", "done", "done", "interrupted"] == sorted(run.outcome for run in kit.runs(one))


def test_crash_makes_a_dead_letter_of_an_event_that_must_not_run_twice() -> None:
    done = []
    one = subscribed(lambda event: done.append(event.data.order_id), idempotent="unknown")
    with SubscriberTester(one) as kit:
        kit.crash(at="done")
        kit.publish(paid, Paid("o1"))
        kit.publish(paid, Paid("o2"))
        kit.rebalance()
        kit.advance("1m")

        assert ["interrupted"] == [dead_letter.reason for dead_letter in kit.dead_letters(one)]
        assert [("o1", "crash"), ("o2", "done")] == [(run.data.order_id, run.outcome) for run in kit.runs(one)]
    assert ["o1", "o2"] == done


def test_event_published_twice_under_one_id_runs_once_with_deduplication() -> None:
    ids = []
    once = subscribed(lambda event: ids.append(event.id), idempotent="unknown")
    repeated = subscribed(lambda event: ids.append("again"), name="tell")
    with SubscriberTester(once, repeated) as kit:
        event_id = kit.publish(paid, Paid("o1"))
        kit.publish(paid, Paid("o1"), event_id=event_id)
        kit.advance("10s")

    assert sorted([event_id, "again", "again"]) == sorted(ids)


def test_late_success_of_a_frozen_process_makes_a_second_dead_letter() -> None:
    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(5)  # virtual time

    one = subscribed(ship, idempotent="unknown", timeout="2m")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.freeze("1m")
        kit.advance("1m")

        assert ["interrupted", "finished-late"] == [dead_letter.reason for dead_letter in kit.dead_letters(one)]


def test_at_most_once_event_is_not_repeated_after_redis_was_wiped() -> None:
    done = []
    one = subscribed(lambda event: done.append(event.data.order_id), idempotent="no")
    with SubscriberTester(one) as kit:
        kit.crash(at="begun")
        kit.publish(paid, Paid("o2"))
        kit.wipe_redis()
        kit.rebalance()

        assert "interrupted" == kit.dead_letters(one)[0].reason
        assert [(1, "crash")] == seen_by(kit, one)
    assert [] == done


def test_finished_event_is_committed_soon_without_further_events() -> None:
    async def ship(event: Received[Paid]) -> None:
        """End at once."""

    one = subscribed(ship, idempotent="no")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("50ms")
        kit.crash()
        kit.advance("1m")

        assert ([(1, "done")], []) == (seen_by(kit, one), kit.dead_letters(one))


@pytest.mark.parametrize("idempotent", ["unknown", "no"])
def test_event_that_ended_during_a_release_is_no_dead_letter_if_the_process_is_killed_then(idempotent: str) -> None:
    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(event.data.cents)  # virtual time

    one = subscribed(ship, idempotent=idempotent, timeout="2m")
    with SubscriberTester(one) as kit:
        for cents in (60, 1, 2, 3):
            kit.publish(paid, Paid(f"o{cents}", cents))
        kit._workers.owner.stop()
        kit.advance("10s")
        kit.crash()
        kit.advance("1m")

        assert ["crash", "done", "done", "done"] == [run.outcome for run in kit.runs(one)]
        assert [("interrupted", b"o60")] == [(dead_letter.reason, dead_letter.key) for dead_letter in kit.dead_letters(one)]
