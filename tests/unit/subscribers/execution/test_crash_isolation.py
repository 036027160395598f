"""Which events are suspected of killing their process, by the test kit, for a subscriber that may be called again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from redis.exceptions import ConnectionError as RedisAwayError

from streams_app import Event, Received, subscriber
from streams_app.subscribers.execution.crash_isolation import FEWEST_TOGETHER, CrashIsolation, next_together, watched_ms
from streams_app.subscribers.guarantees.at_least_once import CLAIMED
from streams_app.testing import SubscriberTester


class Paid(msgspec.Struct, frozen=True):
    order_id: str


paid = Event("order.paid", Paid, description="Paid.", keyed_by="order_id")


class Shop:
    """A subscriber that has an event which kills its process.

    Attributes:
        ship: The subscriber.
        begun: The number of attempts of each order.
        kit: Its test kit.
    """

    def __init__(
        self,
        *,
        after_seconds: float = 0,
        seconds: float = 0.01,
        late_seconds: float = 0,
        timeout: str = "30s",
        concurrency: int = 16,
    ) -> None:
        """Declare the subscriber.

        Args:
            after_seconds: How long ``die`` runs before it kills its process.
            seconds: How long the other orders run.
            late_seconds: How long ``die late`` runs before it kills its process.
            timeout: The time limit of each attempt.
            concurrency: How many attempts run at the same time.
        """
        dying = {"die": after_seconds, "die late": late_seconds}
        self.begun: Counter[str] = Counter()
        self.kit: Any = None

        @subscriber(paid, idempotent="yes", description="Ships.", timeout=timeout, concurrency=concurrency)
        async def ship(event: Received[Paid]) -> None:
            self.begun[event.data.order_id] += 1
            if event.data.order_id in dying:
                if wait_seconds := dying[event.data.order_id]:
                    await asyncio.sleep(wait_seconds)  # virtual time
                self.kit.crash()
                await asyncio.sleep(1)  # virtual time
            await asyncio.sleep(seconds)  # virtual time

        self.ship = ship

    def dead_letters_of_ship(self) -> list[tuple[str, str]]:
        return [(dead_letter.reason, dead_letter.key.decode()) for dead_letter in self.kit.dead_letters(self.ship)]


@pytest.mark.parametrize("after_seconds", [0, 0.2])
def test_event_that_kills_its_process_at_once_is_a_dead_letter_after_the_third_crash(after_seconds: float) -> None:
    shop = Shop(after_seconds=after_seconds)
    with SubscriberTester(shop.ship) as shop.kit:
        shop.kit.publish(paid, Paid("die"))
        shop.kit.advance("10m")

        assert ([("crashed", "die")], 3) == (shop.dead_letters_of_ship(), shop.begun["die"])


@pytest.mark.parametrize(("before", "behind"), [(1, 0), (3, 3), (20, 20)])
@pytest.mark.parametrize("seconds", [0.01, 1])
def test_neighbours_of_an_event_that_kills_its_process_are_not_dead_lettered(before: int, behind: int, seconds: float) -> None:
    shop = Shop(seconds=seconds)
    with SubscriberTester(shop.ship) as shop.kit:
        for order in [*(f"a{at}" for at in range(before)), "die", *(f"b{at}" for at in range(behind))]:
            shop.kit.publish(paid, Paid(order))
        shop.kit.advance("10m")

        assert ([("crashed", "die")], 3) == (shop.dead_letters_of_ship(), shop.begun["die"])
        assert before + behind + 1 == len(shop.begun)


@pytest.mark.parametrize(("after_seconds", "crashes"), [(2, 5), (20, 6)])
def test_event_that_kills_its_process_late_is_watched_longer_each_time_and_dead_lettered(
    after_seconds: float, crashes: int
) -> None:
    shop = Shop(after_seconds=after_seconds)
    with SubscriberTester(shop.ship) as shop.kit:
        for order in ["a", "die", "b"]:
            shop.kit.publish(paid, Paid(order))
        shop.kit.advance("10m")

        assert ([("crashed", "die")], crashes) == (shop.dead_letters_of_ship(), shop.begun["die"])


@pytest.mark.parametrize("seconds", [0.01, 0.1, 5])
@pytest.mark.parametrize("after_seconds", [0, 0.2])
def test_crashing_event_of_one_subscriber_makes_no_dead_letters_of_another(after_seconds: float, seconds: float) -> None:
    shop = Shop(after_seconds=after_seconds)

    @subscriber(paid, idempotent="yes", description="Is in the same process.")
    async def thank(event: Received[Paid]) -> None:
        await asyncio.sleep(seconds)  # virtual time

    with SubscriberTester(shop.ship, thank) as shop.kit:
        for order in ["a", "die", "b"]:
            shop.kit.publish(paid, Paid(order))
        shop.kit.advance("10m")

        assert ([("crashed", "die")], 3) == (shop.dead_letters_of_ship(), shop.begun["die"])
        assert [] == shop.kit.dead_letters(thank)


def test_slow_events_soon_run_in_parallel_after_a_crash() -> None:
    shop = Shop(seconds=25)
    with SubscriberTester(shop.ship) as shop.kit:
        for at in range(50):
            shop.kit.publish(paid, Paid(f"o{at}"))
        shop.kit.advance("1s")
        shop.kit.crash()
        shop.kit.rebalance()
        shop.kit.advance("5s")

        assert 2 * shop.ship.concurrency == shop.begun.total()


@pytest.mark.parametrize("seconds", [0.01, 0.06, 0.3])
def test_many_events_soon_run_in_parallel_after_a_crash(seconds: float) -> None:
    shop = Shop(seconds=seconds, concurrency=100)
    with SubscriberTester(shop.ship) as shop.kit:
        for at in range(2_000):
            shop.kit.publish(paid, Paid(f"o{at}"))
        shop.kit.crash()
        shop.kit.rebalance()
        before = shop.begun.total()
        shop.kit.advance("3s")

        assert shop.begun.total() - before > 800


@pytest.mark.parametrize("before", [150, 1_000])
def test_event_that_kills_its_process_is_found_at_any_distance_from_the_watermark(before: int) -> None:
    shop = Shop()
    with SubscriberTester(shop.ship) as shop.kit:
        for order in [*(f"a{at}" for at in range(before)), "die", *(f"b{at}" for at in range(50))]:
            shop.kit.publish(paid, Paid(order))
        shop.kit.advance("10m")

        assert ([("crashed", "die")], 3) == (shop.dead_letters_of_ship(), shop.begun["die"])
        assert before + 51 == len(shop.begun)


def test_event_that_kills_its_process_is_found_among_many_new_arrivals() -> None:
    shop = Shop(seconds=0.03)
    with SubscriberTester(shop.ship) as shop.kit:
        for at in range(3_000):
            shop.kit.publish(paid, Paid("die" if at == 400 else f"o{at}"))
            shop.kit.advance("7ms")
        shop.kit.advance("10m")

        assert ([("crashed", "die")], 3) == (shop.dead_letters_of_ship(), shop.begun["die"])


def test_crashing_event_queued_behind_slow_ones_is_found_at_its_third_crash() -> None:
    shop = Shop(seconds=60, timeout="2m")
    with SubscriberTester(shop.ship) as shop.kit:
        for order in [*(f"a{at}" for at in range(shop.ship.concurrency)), "die"]:
            shop.kit.publish(paid, Paid(order))
        shop.kit.advance("20m")

        assert ([("crashed", "die")], 3) == (shop.dead_letters_of_ship(), shop.begun["die"])


def test_hand_over_keeps_suspects() -> None:
    shop = Shop()
    with SubscriberTester(shop.ship) as shop.kit:
        for order in [*(f"a{at}" for at in range(100)), "die"]:
            shop.kit.publish(paid, Paid(order))
        while shop.begun["die"] < 3:
            shop.kit.advance("100ms")
            if not shop.kit._workers.owner.is_alive:
                shop.kit.rebalance()
                shop.kit.rebalance()
        shop.kit.advance("10m")

        assert ([("crashed", "die")], 3) == (shop.dead_letters_of_ship(), shop.begun["die"])


def test_event_that_arrives_after_a_crash_is_not_blamed_for_it() -> None:
    shop = Shop()
    with SubscriberTester(shop.ship) as shop.kit:
        shop.kit.publish(paid, Paid("a"))
        shop.kit.crash()
        shop.kit.rebalance()
        shop.kit.publish(paid, Paid("die"))
        shop.kit.advance("10m")

        assert ([("crashed", "die")], 3) == (shop.dead_letters_of_ship(), shop.begun["die"])


@pytest.mark.parametrize("orders", [("die late", "a", "die", "b"), ("a", "die", "b", "die late"), ("die", "die late", "a", "b")])
@pytest.mark.parametrize("seconds", [0.01, 25])
def test_neighbours_of_two_events_that_kill_their_process_are_not_dead_lettered(orders: tuple[str, ...], seconds: float) -> None:
    shop = Shop(seconds=seconds, late_seconds=0.3)
    with SubscriberTester(shop.ship) as shop.kit:
        for order in orders:
            shop.kit.publish(paid, Paid(order))
        shop.kit.advance("10m")

        assert {("crashed", "die"), ("crashed", "die late")} == set(shop.dead_letters_of_ship())


def test_hand_over_whose_last_attempt_log_is_fenced_counts_as_no_crash() -> None:
    begun: list[str] = []
    hand_overs = ["first", "second"]

    @subscriber(paid, idempotent="yes", description="Ships.", timeout="2m")
    async def ship(event: Received[Paid]) -> None:
        begun.append(event.data.order_id)
        await asyncio.sleep(60 if hand_overs else 0)  # virtual time

    with SubscriberTester(ship) as kit:
        for order in ORDERS:
            kit.publish(paid, Paid(order))
        while hand_overs:
            kit.advance("1s")
            with EndsRejected(kit):
                hand_overs.pop()
                kit.rebalance()
        kit.advance("10m")

        assert [] == kit.dead_letters(ship)
    assert set(ORDERS) == set(begun)


ORDERS = ["o1", "o2", "o3"]


class EndsRejected:
    """Redis rejects every write of a finished event."""

    def __init__(self, kit: SubscriberTester) -> None:
        """Reject within the block."""
        self._scripts: Any = kit._workers.scripts

    def __enter__(self) -> None:
        self._by_name: Mapping[str, Callable[[Sequence[str], Mapping[str, Any]], Awaitable[Any]]] = self._scripts.by_name

        async def rejected(keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
            raise RedisAwayError("away")

        self._scripts.by_name = {**self._by_name, "end": rejected}

    def __exit__(self, *error: object) -> None:
        self._scripts.by_name = self._by_name


@pytest.mark.parametrize(("crashes", "concurrency"), [(0, 16), (1, 16), (1, 2)])
def test_attempt_log_contains_running_events_and_not_those_waiting_for_a_slot(crashes: int, concurrency: int) -> None:
    shop = Shop(seconds=20, concurrency=concurrency)
    with SubscriberTester(shop.ship) as shop.kit:
        for at in range(100):
            shop.kit.publish(paid, Paid(f"o{at}"))
        for _ in range(crashes):
            shop.kit.crash()
            shop.kit.rebalance()
        shop.kit.advance("40ms" if crashes else "1s")
        entries = [entry for hash_ in shop.kit._workers.scripts._hashes.values() for at, entry in hash_.items() if at.isdigit()]

        assert (min(concurrency, FEWEST_TOGETHER) if crashes else concurrency) == len(entries)


@pytest.mark.parametrize(("seconds", "expected"), [(1, {str(CLAIMED)}), (120, set())])
def test_release_is_recorded_once_all_suspects_were_retried(seconds: int, expected: set[str]) -> None:
    shop = Shop()
    with SubscriberTester(shop.ship) as shop.kit:
        shop.kit.publish(paid, Paid("o"))
        shop.kit.crash()
        shop.kit.advance(f"{20 + seconds}s")
        shop.kit._workers.wait_for(shop.kit._workers.owner.stop())
        claims = {at for hash_ in shop.kit._workers.scripts._hashes.values() for at in hash_ if at == str(CLAIMED)}

        assert expected == claims


def test_finished_suspect_is_no_longer_suspected() -> None:
    shop = Shop()
    with SubscriberTester(shop.ship) as shop.kit:
        for round_ in range(5):
            shop.kit.publish(paid, Paid(f"o{round_}"))
            shop.kit.publish(paid, Paid(f"p{round_}"))
            shop.kit.crash()
            shop.kit.advance("1m")

        assert [] == shop.dead_letters_of_ship()


@pytest.mark.parametrize(("before", "expected"), [(4, 8), (16, 32), (32, 32)])
def test_more_suspects_start_together_after_harmless_ones(before: int, expected: int) -> None:
    assert expected == next_together(before)


@pytest.mark.parametrize(("attempts", "expected"), [(0, 50), (1, 50), (2, 250), (3, 1_250), (8, 3_906_250), (100, 3_906_250)])
def test_suspect_is_watched_longer_with_each_attempt(attempts: int, expected: int) -> None:
    assert expected == watched_ms(attempts)


@pytest.mark.parametrize(
    ("is_solo_retry", "is_next_solo_retry", "expected"),
    [(False, False, True), (False, True, False), (True, False, False), (True, True, False)],
)
def test_solo_retry_excludes_any_other(is_solo_retry: bool, is_next_solo_retry: bool, expected: bool) -> None:
    crash_isolation = CrashIsolation()
    crash_isolation.begin("one", is_solo_retry=is_solo_retry)

    assert expected == crash_isolation.may_begin("other", is_solo_retry=is_next_solo_retry, kick=lambda: None)


def test_solo_retry_precedes_later_suspects() -> None:
    crash_isolation = CrashIsolation()
    crash_isolation.begin("one", is_solo_retry=False)
    waits = crash_isolation.may_begin("last", is_solo_retry=True, kick=lambda: None)

    assert (False, False) == (waits, crash_isolation.may_begin("other", is_solo_retry=False, kick=lambda: None))
    crash_isolation.end("one")
    assert crash_isolation.may_begin("last", is_solo_retry=True, kick=lambda: None)


def test_waiting_solo_retry_is_notified_once_of_the_end() -> None:
    crash_isolation, kicked = CrashIsolation(), []
    crash_isolation.begin("one", is_solo_retry=True)
    crash_isolation.may_begin("other", is_solo_retry=False, kick=lambda: kicked.append("other"))
    crash_isolation.end("one")
    crash_isolation.end("one")

    assert ["other"] == kicked


def test_withdrawn_solo_retry_is_not_notified() -> None:
    crash_isolation, kicked = CrashIsolation(), []
    crash_isolation.begin("one", is_solo_retry=True)
    crash_isolation.may_begin("other", is_solo_retry=False, kick=lambda: kicked.append("other"))
    crash_isolation.end("other")
    crash_isolation.end("one")

    assert [] == kicked
