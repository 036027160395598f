"""State of a subscriber's partition in Redis, and the writes that its scripts reject."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import redis.asyncio

from streams_app.clock import SystemClock
from streams_app.delivery.scripts import FencedError
from streams_app.events.headers import identity_of
from streams_app.subscribers.declaration.subscriber import Rate
from streams_app.subscribers.state.keys import HOUR_MS, SubscriberKeys, rate_key
from streams_app.subscribers.state.store import AttemptEntry, Begin, RateStore, StoredState, SubscriberScripts, SubscriberStore
from streams_app.subscribers.state.token_bucket import bucket_of
from tests.conftest import Names

NOW_MS = 1_700_000_000_000
REMEMBER_MS = HOUR_MS
FIRST = AttemptEntry(1)


class Owners:
    """Owners of one subscriber's partition, one after the other."""

    def __init__(self, client: redis.asyncio.Redis, names: Names) -> None:
        self.client = client
        self.keys = SubscriberKeys(names.app_id, "ship", "orders", 0)
        self._scripts = SubscriberScripts(client)

    def store(self, token: str) -> SubscriberStore:
        return SubscriberStore(self._scripts, self.keys, token, remember_ms=REMEMBER_MS)

    async def claimed(self, token: str = "a") -> SubscriberStore:
        store = self.store(token)
        await store.claim(5)
        return store

    def former_key(self) -> str:
        """Return the key under which an earlier version stored the ids of this hour."""
        return f"{{{self.keys.state[0].partition('}')[0][1:]}}}:v1:ids:{NOW_MS // HOUR_MS}"

    async def kept(self) -> StoredState | None:
        """Return what the next owner finds."""
        return await self.store("next").claim(None)


@pytest.fixture
def owners(redis_client: redis.asyncio.Redis, names: Names) -> Owners:
    return Owners(redis_client, names)


def begin(offset: int, event_id: str = "", entry: AttemptEntry = FIRST) -> Begin:
    return Begin(offset, entry, event_id)


async def test_state_starts_at_the_low_watermark_and_only_on_request(owners: Owners) -> None:
    assert None is await owners.kept()
    assert StoredState(5, 0, {}) == await owners.store("a").claim(5)
    assert StoredState(5, 0, {}) == await owners.store("b").claim(9)


async def test_next_owner_finds_started_and_waiting_events_and_no_finished_ones(owners: Owners) -> None:
    store = await owners.claimed()
    await store.begin([begin(5), begin(6), begin(7, entry=AttemptEntry(2, 1))], NOW_MS)
    await store.end([5], [(6, AttemptEntry(1, 0, NOW_MS + 900))], 6)
    kept = await owners.kept()

    assert StoredState(6, 3, {6: AttemptEntry(1, 0, NOW_MS + 900), 7: AttemptEntry(2, 1)}) == kept
    assert [False, True] == [entry.is_begun for entry in kept.open.values()]


@pytest.mark.parametrize("step", ["learn", "begin", "end"])
async def test_former_owner_is_fenced(owners: Owners, step: str) -> None:
    former = await owners.claimed("a")
    await owners.claimed("b")
    steps: dict[str, Callable[[], Awaitable[object]]] = {
        "learn": lambda: former.learn([(4, "o4")], NOW_MS),
        "begin": lambda: former.begin([begin(5)], NOW_MS),
        "end": lambda: former.end([5], [], 6),
    }
    with pytest.raises(FencedError, match="token"):
        await steps[step]()

    assert StoredState(5, 0, {}) == await owners.kept()


@pytest.mark.parametrize("step", ["begin", "end"])
async def test_wiped_redis_is_detected_by_its_owner(owners: Owners, step: str) -> None:
    store = await owners.claimed()
    await owners.client.delete(*owners.keys.state)
    with pytest.raises(FencedError, match="no-state"):
        await (store.begin([begin(5)], NOW_MS) if step == "begin" else store.end([5], [], 6))


@pytest.mark.parametrize("step", ["learn", "begin", "end"])
async def test_rolled_back_redis_is_detected_by_its_owner(owners: Owners, step: str) -> None:
    store = await owners.claimed()
    await store.begin([begin(5)], NOW_MS)
    images = {key: await owners.client.dump(key) for key in owners.keys.state}
    await store.begin([begin(6, "o6")], NOW_MS)
    for key, image in images.items():
        await owners.client.restore(key, 0, image or b"", replace=True)
    steps: dict[str, Callable[[], Awaitable[object]]] = {
        "learn": lambda: store.learn([(4, "o4")], NOW_MS),
        "begin": lambda: store.begin([begin(7)], NOW_MS),
        "end": lambda: store.end([6], [], 7),
    }
    with pytest.raises(FencedError, match="number"):
        await steps[step]()


async def test_rollback_before_ids_were_learned_rejects_new_begins(owners: Owners) -> None:
    store = await owners.claimed()
    image = await owners.client.dump(owners.keys.state[0])
    await store.learn([(4, "o4")], NOW_MS)
    await store.learn([(4, "o4")], NOW_MS)  # as after a lost reply
    await owners.client.restore(owners.keys.state[0], 0, image or b"", replace=True)

    with pytest.raises(FencedError, match="number"):
        await store.begin([begin(7, "o4")], NOW_MS)


async def test_repeated_learning_after_a_missing_reply_is_accepted(owners: Owners) -> None:
    store = await owners.claimed()
    number = store._number
    await store.learn([(4, "o4")], NOW_MS)
    store._number = number  # as one that has no reply
    await store.learn([(4, "o4"), (5, "o5")], NOW_MS)

    assert [4, 5, None] == await store.begin([begin(7, "o4"), begin(8, "o5"), begin(9, "o9")], NOW_MS)


async def test_repeated_id_is_a_duplicate_even_within_one_call(owners: Owners) -> None:
    store = await owners.claimed()
    first = await store.begin([begin(5, "o1"), begin(6, "o2"), begin(7, "o1")], NOW_MS)
    later = await store.begin([begin(8, "o2"), begin(9, "o3")], NOW_MS)
    kept = await owners.kept()

    assert ([None, None, 5], [6, None]) == (first, later)
    assert kept is not None
    assert {5, 6, 9} == kept.open.keys()


async def test_id_at_its_own_offset_is_no_duplicate(owners: Owners) -> None:
    store = await owners.claimed()
    await store.begin([begin(5, "o1")], NOW_MS)
    repeated = await store.begin([begin(5, "o1", AttemptEntry(2))], NOW_MS)
    kept = await owners.kept()

    assert [None] == repeated
    assert kept is not None
    assert {5: AttemptEntry(2)} == kept.open


async def test_events_without_ids_are_never_duplicates(owners: Owners) -> None:
    store = await owners.claimed()

    assert [None, None] == await store.begin([begin(5), begin(6)], NOW_MS)


@pytest.mark.parametrize(("later_ms", "is_remembered"), [(REMEMBER_MS, True), (REMEMBER_MS + HOUR_MS, False)])
async def test_id_is_remembered_for_the_declared_time(owners: Owners, later_ms: int, is_remembered: bool) -> None:
    store = await owners.claimed()
    await store.begin([begin(5, "o1")], NOW_MS)

    assert [5 if is_remembered else None] == await store.begin([begin(6, "o1")], NOW_MS + later_ms)


IDENTITY = identity_of("o1", [("ce_source", b"/eu")])


@pytest.mark.parametrize(("offset", "expected"), [(5, None), (9, 5)])
async def test_ids_stored_without_a_source_by_an_earlier_version_are_recognized(
    owners: Owners, offset: int, expected: int | None
) -> None:
    store = await owners.claimed()
    await owners.client.hset(owners.former_key(), "o1", "5")

    assert [expected] == await store.begin([begin(offset, IDENTITY)], NOW_MS)


async def test_learned_id_keeps_the_offset_stored_by_an_earlier_version(owners: Owners) -> None:
    store = await owners.claimed()
    await owners.client.hset(owners.former_key(), "o1", "5")
    await store.learn([(9, IDENTITY)], NOW_MS)

    assert [5] == await store.begin([begin(9, IDENTITY)], NOW_MS)


async def test_two_sources_with_one_id_are_two_events(owners: Owners) -> None:
    store = await owners.claimed()
    other = identity_of("o1", [("ce_source", b"/us")])

    assert [None, None, 5] == await store.begin([begin(5, IDENTITY), begin(6, other), begin(7, IDENTITY)], NOW_MS)


async def test_ids_of_an_hour_expire_by_themselves_and_not_too_early(owners: Owners) -> None:
    store = await owners.claimed()
    await store.begin([begin(5, "o1")], NOW_MS)
    left_ms = await owners.client.pttl(owners.keys.ids(NOW_MS, REMEMBER_MS)[0])

    assert REMEMBER_MS + HOUR_MS < left_ms <= REMEMBER_MS + 2 * HOUR_MS


async def test_next_owner_finds_the_offsets_finished_above_the_watermark(owners: Owners) -> None:
    store = await owners.claimed()
    await store.begin([begin(5), begin(6)], NOW_MS)
    await store.end([6], [], 5, "what is finished")
    kept = await owners.kept()

    assert StoredState(5, 2, {5: FIRST}, "what is finished") == kept


async def test_delayed_end_request_changes_nothing_after_a_later_one(owners: Owners) -> None:
    store, delayed = await owners.claimed(), owners.store("a")
    await store.begin([begin(5), begin(6)], NOW_MS)
    await delayed.claim(None)
    await store.end([5], [], 6, "one")
    await store.end([6], [], 7, "two")
    await delayed.end([], [(5, AttemptEntry(1, 0, NOW_MS))], 5, "none")
    kept = await owners.kept()

    assert StoredState(7, 2, {}, "two") == kept


async def test_learned_ids_are_recognized_and_keep_their_first_offset(owners: Owners) -> None:
    store = await owners.claimed()
    await store.begin([begin(7, "o3")], NOW_MS)
    await store.learn([(1, "o1"), (2, "o2"), (3, "o1"), (4, "o3")], NOW_MS)

    assert [1, 2, 7, None] == await store.begin([begin(8, "o1"), begin(9, "o2"), begin(10, "o3"), begin(11, "o4")], NOW_MS)


async def test_request_repeated_after_a_missing_reply_returns_the_same(owners: Owners) -> None:
    store, copy = await owners.claimed(), owners.store("a")
    events = [begin(5, "o1"), begin(6, "o1")]
    first = await store.begin(events, NOW_MS)
    repeated = await copy.begin(events, NOW_MS)

    assert first == repeated == [None, 5]
    kept = await owners.kept()
    assert kept is not None
    assert (2, {5: AttemptEntry(1)}) == (kept.number, kept.open)


async def test_remainder_of_a_state_without_its_metadata_is_dropped(owners: Owners) -> None:
    store = await owners.claimed()
    await store.begin([begin(5)], NOW_MS)
    await owners.client.delete(owners.keys.state[0])

    assert StoredState(8, 0, {}) == await owners.store("b").claim(8)


# Rate limit


async def test_workers_lease_from_one_bucket_that_server_time_fills(redis_client: redis.asyncio.Redis, names: Names) -> None:
    key, bucket = rate_key(names.app_id, "ship"), bucket_of(Rate(100, 1_000))
    stores = [RateStore(SubscriberScripts(redis_client), key, token, bucket) for token in "ab"]
    leased, begun_ms = 0, SystemClock().monotonic_ms()
    while leased < 150:
        for store in stores:
            leased += (await store.lease(7))[0].granted
    took_ms = SystemClock().monotonic_ms() - begun_ms

    # The clocks differ by less than a lease in the time that this takes.
    assert leased <= 100 + took_ms / 10 + 2
    assert 2 == (await stores[0].lease(0))[1]


async def test_state_of_an_unused_rate_expires(redis_client: redis.asyncio.Redis, names: Names) -> None:
    key = rate_key(names.app_id, "ship")
    await RateStore(SubscriberScripts(redis_client), key, "a", bucket_of(Rate(1, 60_000))).lease(1)

    assert 59_000 < await redis_client.pttl(key) <= 60_000
