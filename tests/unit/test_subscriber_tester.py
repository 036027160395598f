"""The test kit of subscribers: what a worker does, at a virtual clock."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from streams_app import Catalogue, Event, Fold, Received, Reject, Retries, Retry, records_of, subscriber
from streams_app.errors import BadEventError, ConfigurationError
from streams_app.testing import FoldTester, SubscriberTester, UnseenLettersError


class Paid(msgspec.Struct, frozen=True):
    order_id: str
    cents: int = 1


class Sent(msgspec.Struct, frozen=True):
    order_id: str


class AccountChanged(msgspec.Struct, frozen=True):
    account_id: str
    metrics: list[str]


paid = Event("order.paid", Paid, description="Paid.", keyed_by="order_id")
sent = Event("parcel.sent", Sent, description="Sent.", keyed_by="order_id")


def subscribed(function: Callable[[Received[Any]], Any], source: Any = paid, **options: Any) -> Any:
    """A subscriber of any function, under the name ``ship``."""
    function.__name__ = options.pop("name", "ship")
    return subscriber(source, **({"idempotent": "yes", "description": "Under test."} | options))(function)


def seen_by(kit: SubscriberTester, one: Any) -> list[tuple[int, str]]:
    return [(run.attempt, run.outcome) for run in kit.runs(one)]


# What ran


def test_a_function_that_asks_for_a_retry_is_called_again_when_it_is_due() -> None:
    async def ship(event: Received[Paid]) -> None:
        if event.attempt == 1:
            raise Retry(after="30s")
        await event.publish(sent, Sent(event.data.order_id))

    one = subscribed(ship)
    with SubscriberTester(one) as kit:
        event_id = kit.publish(paid, Paid("o1", 500), context={"userid": "u7"})
        kit.advance("29s")
        assert [(1, "retry")] == seen_by(kit, one)
        kit.advance("2s")

        assert [(1, "retry"), (2, "done")] == seen_by(kit, one)
        (parcel,) = kit.published(sent)
        assert (Sent("o1"), "o1", event_id, "u7") == (parcel.data, parcel.key, parcel.causation_id, parcel.context["userid"])


def test_a_function_without_async_runs_inline_and_publishes() -> None:
    def ship(event: Received[Paid]) -> None:
        event.publish_sync(sent, Sent(event.data.order_id))

    one = subscribed(ship)
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))

        assert [(1, "done")] == seen_by(kit, one)
        assert [Sent("o1")] == [parcel.data for parcel in kit.published(sent)]


def test_a_function_without_async_finds_no_running_loop_as_in_a_thread() -> None:
    def ship(event: Received[Paid]) -> None:
        asyncio.run(asyncio.sleep(0))
        event.publish_sync(sent, Sent(event.data.order_id))

    one = subscribed(ship)
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))

        assert [(1, "done")] == seen_by(kit, one)


def test_a_function_with_async_that_would_wait_for_its_own_loop_is_refused_as_in_a_worker() -> None:
    async def ship(event: Received[Paid]) -> None:
        event.publish_sync(sent, Sent(event.data.order_id))

    one = subscribed(ship, retry=Retries(attempts=1))
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        (letter,) = kit.dead_letters(one)

        assert "await the function without _sync" in letter.detail
        assert [] == kit.published(sent)


def test_what_one_publishes_reaches_the_others() -> None:
    async def ship(event: Received[Paid]) -> None:
        await event.publish(sent, Sent(event.data.order_id))

    told = []
    one, other = subscribed(ship), subscribed(lambda event: told.append(event.data.order_id), sent, name="tell")
    with SubscriberTester(one, other) as kit:
        kit.publish(paid, Paid("o1"))

    assert ["o1"] == told


def test_the_clock_begins_where_it_is_told_and_waits_take_no_time() -> None:
    times = []

    async def ship(event: Received[Paid]) -> None:
        times.append(event.timestamp)
        await asyncio.sleep(20)

    one = subscribed(ship)
    with SubscriberTester(one, clock="2026-01-01") as kit:
        kit.advance("1h")
        kit.publish(paid, Paid("o1"))
        assert [(1, "running")] == seen_by(kit, one)
        kit.advance("20s")

        assert [(1, "done")] == seen_by(kit, one)
        assert ([datetime(2026, 1, 1, 1, tzinfo=UTC)], datetime(2026, 1, 1, 1, 0, 20, tzinfo=UTC)) == (times, kit.now)


def test_a_function_that_hangs_is_timed_out() -> None:
    async def ship(event: Received[Paid]) -> None:
        await asyncio.Event().wait()

    one = subscribed(ship, timeout="5s", retry=Retries(attempts=2, first="1s"))
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("1m")

        assert [(1, "timeout"), (2, "timeout")] == seen_by(kit, one)
        assert ["timed-out"] == [letter.reason for letter in kit.dead_letters(one)]


def test_a_function_that_waits_for_nothing_is_timed_out_too() -> None:
    async def ship(event: Received[Paid]) -> None:
        while True:
            await asyncio.sleep(0)

    one = subscribed(ship, timeout="1s", retry=Retries(attempts=1))
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))

        assert [(1, "timeout")] == seen_by(kit, one)
        assert 1 == len(kit.dead_letters(one))


def test_a_thread_that_a_function_waits_for_takes_no_virtual_time() -> None:
    threads: list[int] = []

    async def ship(event: Received[Paid]) -> None:
        await asyncio.to_thread(lambda: threads.append(sum(range(1_000_000))))

    one = subscribed(ship, timeout="1s")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))

        assert ([(1, "done")], 1) == (seen_by(kit, one), len(threads))


def test_a_connection_that_a_function_waits_for_is_waited_for() -> None:
    said: list[bytes] = []

    def answer() -> None:
        connection, _ = listening.accept()
        with connection:
            received = connection.recv(100)
            # It takes a while, and leaves the loop alone meanwhile.
            hashlib.pbkdf2_hmac("sha256", received, b"salt", 300_000)
            connection.sendall(received)

    async def ship(event: Received[Paid]) -> None:
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(b"hello\n")
        said.append(await reader.readline())
        writer.close()

    one = subscribed(ship, retry=Retries(attempts=1))
    with socket.create_server(("127.0.0.1", 0)) as listening, SubscriberTester(one) as kit:
        thread = threading.Thread(target=answer)
        thread.start()
        kit.publish(paid, Paid("o1"))
        kit.advance("29s")
        thread.join()

        assert ([(1, "done")], [b"hello\n"]) == (seen_by(kit, one), said)


def test_events_of_a_key_follow_each_other() -> None:
    done = []

    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(10 if event.data.cents == 1 else 0)
        done.append((event.data.order_id, event.data.cents))

    with SubscriberTester(subscribed(ship, ordered="key")) as kit:
        for order, cents in (("o1", 1), ("o1", 2), ("o2", 2)):
            kit.publish(paid, Paid(order, cents))
        kit.advance("1m")

    assert [("o2", 2), ("o1", 1), ("o1", 2)] == done


# What is refused


def test_a_letter_that_the_test_does_not_look_at_is_raised_with_where_it_came_from() -> None:
    def ship(event: Received[Paid]) -> None:
        raise Reject("nobody lives there")

    def leave() -> None:
        with SubscriberTester(subscribed(ship)) as kit:
            kit.publish(paid, Paid("o1"))

    with pytest.raises(UnseenLettersError, match=r"(?s)ship: .*, rejected: nobody lives there.*in ship"):
        leave()


def test_a_letter_after_those_that_were_looked_at_is_raised_too() -> None:
    def ship(event: Received[Paid]) -> None:
        raise Reject("nobody lives there")

    def leave() -> None:
        with SubscriberTester(one := subscribed(ship)) as kit:
            kit.publish(paid, Paid("o1"))
            assert 1 == len(kit.dead_letters(one))
            kit.publish(paid, Paid("o2"))

    with pytest.raises(UnseenLettersError):
        leave()


def test_an_error_of_the_test_itself_is_not_hidden_by_letters() -> None:
    def ship(event: Received[Paid]) -> None:
        raise Reject("nobody lives there")

    def leave() -> None:
        with SubscriberTester(subscribed(ship)) as kit:
            kit.publish(paid, Paid("o1"))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        leave()


def test_what_becomes_of_an_error_is_told() -> None:
    def ship(event: Received[Paid]) -> None:
        raise ConnectionError("the carrier is away")

    one = subscribed(ship, retry=Retries(attempts=2, first="1s"))
    with SubscriberTester(one) as kit:
        event_id = kit.publish(paid, Paid("o1"))
        kit.advance("10s")
        (letter,) = kit.dead_letters(one)

    assert ("failed", event_id, 2, "ConnectionError", b"o1", b'{"order_id":"o1","cents":1}') == (
        letter.reason, letter.event_id, letter.attempts, letter.exception, letter.key, letter.value,
    )  # fmt: skip
    assert [ConnectionError, ConnectionError] == [type(run.error) for run in kit.runs(one)]


def test_events_go_through_bytes() -> None:
    one = subscribed(lambda event: None)
    with SubscriberTester(one) as kit:
        with pytest.raises(BadEventError, match=r"\$\.cents"):
            kit.publish(paid, Paid("o1", "500"))  # type: ignore[arg-type]  # that is the point
        kit.produce(paid, b'{"order_id": "o1", "cents": "500"}')
        kit.produce(paid, b'{"order_id": "o2"}', headers=[("ce_type", b"another.event")])

        assert [("not-valid", "$.cents")] == [(letter.reason, letter.detail[-8:-1]) for letter in kit.dead_letters(one)]
        assert [] == kit.runs(one)


def test_of_a_catalogue_only_declared_events_are_published_and_its_lifespan_is_entered() -> None:
    life = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        life.append("open")
        yield
        life.append("closed")

    async def ship(event: Received[Paid]) -> None:
        await event.publish(sent, Sent("o1"))

    one = subscribed(ship, retry=Retries(attempts=1))
    with SubscriberTester(Catalogue(events=(paid,), subscribers=(one,), lifespan=resources)) as kit:
        assert ["open"] == life
        kit.publish(paid, Paid("o1"))

        assert [ConfigurationError] == [type(run.error) for run in kit.runs(one)]
        assert ["failed"] == [letter.reason for letter in kit.dead_letters(one)]
    assert ["open", "closed"] == life


def test_a_lifespan_that_fails_is_told_by_the_block() -> None:
    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        if life:
            raise ConnectionError("no database")
        yield

    life = ["fails"]
    catalogue = Catalogue(events=(paid,), subscribers=(subscribed(lambda event: None),), lifespan=resources)
    with pytest.raises(ConnectionError, match="no database"), SubscriberTester(catalogue):
        raise NotImplementedError


async def test_within_a_running_loop_it_says_that_it_has_its_own() -> None:
    with pytest.raises(RuntimeError, match="test without async"), SubscriberTester(subscribed(lambda event: None)):
        raise NotImplementedError


def test_a_subscriber_of_another_kit_is_named() -> None:
    another = subscribed(lambda event: None, name="tell")
    with (
        SubscriberTester(subscribed(lambda event: None)) as kit,
        pytest.raises(ValueError, match=r"'tell' is no subscriber .* ship"),
    ):
        kit.runs(another)


# A bad night


def test_an_event_that_was_begun_when_its_process_was_killed_runs_again_in_another_one() -> None:
    done = []
    one = subscribed(lambda event: done.append(event.attempt))
    with SubscriberTester(one) as kit:
        kit.crash(at="begun")
        kit.publish(paid, Paid("o1"))
        assert ([(1, "crash")], []) == (seen_by(kit, one), done)
        kit.advance("1m")

        assert ([(1, "crash"), (2, "done")], [2]) == (seen_by(kit, one), done)


def test_an_event_whose_process_was_killed_when_its_function_had_returned_runs_again() -> None:
    done = []
    one = subscribed(lambda event: done.append(event.attempt))
    with SubscriberTester(one) as kit:
        kit.crash(at="done")
        kit.publish(paid, Paid("o1"))
        kit.rebalance()

        assert ([(1, "crash"), (2, "done")], [1, 2]) == (seen_by(kit, one), done)


def test_a_crash_is_that_of_the_subscriber_that_is_named() -> None:
    one, other = subscribed(lambda event: None), subscribed(lambda event: None, name="tell")
    with SubscriberTester(one, other) as kit:
        kit.crash(at="begun", of=other)
        kit.publish(paid, Paid("o1"))
        kit.advance("1m")

        assert [(1, "crash"), (2, "done")] == seen_by(kit, other)


def test_an_event_that_kills_its_process_three_times_becomes_a_letter() -> None:
    one = subscribed(lambda event: None)
    with SubscriberTester(one) as kit:
        kit.crash(at="begun")
        kit.publish(paid, Paid("o1"))
        for _ in range(2):
            kit.crash(at="begun")
            kit.rebalance()
        kit.rebalance()

        assert [(1, "crash"), (2, "crash"), (3, "crash")] == seen_by(kit, one)
        assert ["crashed"] == [letter.reason for letter in kit.dead_letters(one)]


def test_when_redis_is_wiped_attempts_count_anew() -> None:
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


def test_without_a_wipe_the_next_owner_knows_of_the_attempts() -> None:
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


def test_a_rebalance_takes_back_what_runs_and_it_runs_again() -> None:
    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(60 if event.attempt == 1 and not kit.runs(one)[1:] else 0)

    one = subscribed(ship, timeout="2m")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.rebalance()

        assert [(1, "interrupted"), (1, "done")] == seen_by(kit, one)


def test_what_is_finished_is_not_run_again_by_the_next_owner() -> None:
    async def ship(event: Received[Paid]) -> None:
        if event.data.order_id == "slow":
            await asyncio.sleep(100)

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


def test_what_was_frozen_for_longer_than_its_session_runs_in_another_process_meanwhile() -> None:
    done = []

    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(3)
        done.append(kit.now.second)

    one = subscribed(ship, timeout="2m")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.freeze("40s")
        kit.publish(paid, Paid("o2"))
        kit.advance("10s")

        assert 2 == sum(run.data.order_id == "o1" for run in kit.runs(one))
        assert 1 == sum(run.data.order_id == "o2" for run in kit.runs(one))
        # The first is that of the process that took over; the frozen one ends what it had begun when it goes on.
        assert (True, [40, 43]) == (done[0] < 40, done[1:])


def test_what_is_frozen_for_a_moment_goes_on_by_itself() -> None:
    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(15)

    one = subscribed(ship)
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.freeze("5s")
        kit.advance("1m")

        assert [(1, "done")] == seen_by(kit, one)


def test_a_process_that_comes_back_too_late_commits_nothing() -> None:
    async def ship(event: Received[Paid]) -> None:
        if event.data.order_id == "slow" and len(kit.runs(one)) == 2:
            await asyncio.sleep(100)

    one = subscribed(ship, timeout="3m")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("quick"))
        kit.publish(paid, Paid("slow"))
        kit.freeze("40s")
        ran = len(kit.runs(one))
        kit.advance("2m")
        kit.rebalance()

        assert 4 == ran == len(kit.runs(one))
        # What the late one still ran was taken back from it.
        assert ["done", "done", "done", "interrupted"] == sorted(run.outcome for run in kit.runs(one))


# Other promises


def test_of_an_event_that_must_not_run_twice_a_crash_makes_a_letter() -> None:
    done = []
    one = subscribed(lambda event: done.append(event.data.order_id), idempotent="unknown")
    with SubscriberTester(one) as kit:
        kit.crash(at="done")
        kit.publish(paid, Paid("o1"))
        kit.publish(paid, Paid("o2"))
        kit.rebalance()
        kit.advance("1m")

        assert ["interrupted"] == [letter.reason for letter in kit.dead_letters(one)]
        assert [("o1", "crash"), ("o2", "done")] == [(run.data.order_id, run.outcome) for run in kit.runs(one)]
    assert ["o1", "o2"] == done


def test_an_event_that_is_published_twice_under_one_id_runs_once_where_ids_are_known() -> None:
    ids = []
    once = subscribed(lambda event: ids.append(event.id), idempotent="unknown")
    again = subscribed(lambda event: ids.append("again"), name="tell")
    with SubscriberTester(once, again) as kit:
        event_id = kit.publish(paid, Paid("o1"))
        kit.publish(paid, Paid("o1"), event_id=event_id)
        kit.advance("10s")

    assert sorted([event_id, "again", "again"]) == sorted(ids)


def test_what_a_frozen_process_ends_after_another_one_has_made_a_letter_of_it_makes_a_second_one() -> None:
    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(5)

    one = subscribed(ship, idempotent="unknown", timeout="2m")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.freeze("1m")
        kit.advance("1m")

        assert ["interrupted", "finished-late"] == [letter.reason for letter in kit.dead_letters(one)]


def test_what_must_never_run_twice_does_not_run_again_although_redis_was_wiped() -> None:
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


# Folds

FOLD = Fold(name="account-metrics", source="updates", group_key="account_id", changed="metrics", quiet_period="15m")
updated = Event("metric.updated", AccountChanged, description="It changed.", topic="updates", keyed_by="account_id")


def test_the_records_of_a_fold_flow_on_to_its_subscribers() -> None:
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


def test_a_published_event_is_folded_as_it_stands() -> None:
    seen = []
    one = subscribed(lambda event: seen.append(event.data), records_of("account-metrics", AccountChanged))
    with SubscriberTester(one) as kit:
        kit.connect(FoldTester(FOLD))
        kit.publish(updated, AccountChanged("a", ["likes"]))
        kit.advance("16m")

    assert [AccountChanged("a", ["likes"])] == seen


def test_the_clock_of_a_connected_fold_is_that_of_the_kit() -> None:
    one = subscribed(lambda event: None, records_of("account-metrics", AccountChanged))
    with SubscriberTester(one) as kit:
        fold = kit.connect(FoldTester(FOLD))
        with pytest.raises(RuntimeError, match="advance that one"):
            fold.advance("1m")
        used = FoldTester(FOLD)
        used.send({"account_id": "a", "metrics": []})
        with pytest.raises(ValueError, match="connect it before"):
            kit.connect(used)


def test_a_record_of_a_fold_can_be_made_by_hand() -> None:
    seen = []
    source = records_of("account-metrics", AccountChanged)
    one = subscribed(lambda event: seen.append((event.data, event.key, event.fold and event.fold.id == event.id)), source)
    with SubscriberTester(one) as kit:
        kit.publish(source, AccountChanged("a", ["likes"]), group="a")

    assert [(AccountChanged("a", ["likes"]), "a", True)] == seen


# A second call


class Table:
    """What functions write to, in the place of a database."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    async def write(self, row: str) -> None:
        self.rows.append(row)

    def clear(self) -> None:
        self.rows.clear()

    def dump(self) -> list[str]:
        return list(self.rows)


def checked(function: Callable[[Received[Any]], Any], table: Table, **options: Any) -> None:
    one = subscribed(function)
    with SubscriberTester(one) as kit:
        kit.assert_idempotent(one, Paid("o1"), observe=table.dump, **options)


def test_a_function_that_comes_to_the_same_is_idempotent() -> None:
    table = Table()

    async def ship(event: Received[Paid]) -> None:
        for row in ("a", "b"):
            await asyncio.sleep(1)
            if row not in table.rows:
                await table.write(row)
        await event.publish(sent, Sent(event.data.order_id))

    checked(ship, table)
    checked(ship, table, reset=table.clear)

    assert ["a", "b"] == table.rows


def test_a_function_that_adds_is_told_by_a_diff() -> None:
    table = Table()

    async def ship(event: Received[Paid]) -> None:
        await table.write(event.data.order_id)

    with pytest.raises(AssertionError, match=r"(?s)ship is not idempotent: called twice .*\+ \['o1', 'o1'\]"):
        checked(ship, table)


def test_a_function_that_leaves_out_what_follows_where_it_was_cut_off_is_told_where() -> None:
    table = Table()

    async def ship(event: Received[Paid]) -> None:
        if not table.rows:
            await table.write("order")
            await table.write("position")

    checked(ship, table)
    with pytest.raises(AssertionError, match=r"cut off at an await of ship, line \d+, and called again it leaves another state"):
        checked(ship, table, reset=table.clear)


def test_a_function_without_async_is_cut_off_where_it_publishes() -> None:
    table = Table()

    def ship(event: Received[Paid]) -> None:
        if not table.rows:
            event.publish_sync(sent, Sent("o1"))
            table.rows.append("sent")
            event.publish_sync(sent, Sent("o2"))

    with pytest.raises(
        AssertionError, match=r"cut off before parcel\.sent was published, and called again it leaves other publications"
    ):
        checked(ship, table, reset=table.clear)


def test_a_function_whose_second_call_publishes_something_else_under_the_same_id_is_not_idempotent() -> None:
    table = Table()

    def ship(event: Received[Paid]) -> None:
        table.rows.append("x")
        event.publish_sync(sent, Sent(str(len(table.rows))))
        table.rows[:] = ["x"]

    with pytest.raises(AssertionError, match="called twice it leaves other publications"):
        checked(ship, table)


def test_an_error_of_the_function_is_the_error_of_the_check() -> None:
    def ship(event: Received[Paid]) -> None:
        raise ConnectionError("the carrier is away")

    with pytest.raises(ConnectionError):
        checked(ship, Table())
