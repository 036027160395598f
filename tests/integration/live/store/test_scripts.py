"""The scripts of live views on a real Redis: who may write, what a page shows, and what a hub reads."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from streams_app.delivery.scripts import FencedError
from streams_app.live.core.operations import Change
from streams_app.live.core.state import EMPTY_PAGE, Item, ShardHead, ShardPage
from streams_app.live.store.keys import presence_keys, view_keys
from streams_app.live.store.view_store import (
    ApplyReply,
    ClosedTab,
    LiveClaim,
    LiveScripts,
    PagePresence,
    PageTabs,
    PresenceStore,
    ViewMetadata,
    ViewReader,
    ViewStart,
    ViewStore,
    heads_of,
)
from tests.conftest import Names

EXPIRY_MS = 1_000
CLOCK_MS = 1_700_000_000_000


class Shard:
    """One partition of a list, its owners and a hub."""

    def __init__(self, client: redis.asyncio.Redis, names: Names) -> None:
        self.client = client
        self.keys = view_keys(names.app_id, "news", "t", 0)
        self.scripts = LiveScripts(client)
        self.reader = ViewReader(client, self.scripts, show=2)

    def store(self, token: str, *, keep: int = 10, has_data: bool = True) -> ViewStore:
        return ViewStore(self.scripts, self.keys, token, has_data=has_data, expiry_ms=EXPIRY_MS, keep=keep)

    async def claimed(self, token: str = "a", **options: bool) -> ViewStore:
        store = self.store(token, **options)
        await store.claim("d", "id", 1, begin=ViewStart(9, CLOCK_MS, ViewMetadata()))
        return store

    async def page(self, name: str = "p") -> ShardPage:
        polled = await self.reader.poll(self.keys, {name: ""})
        return EMPTY_PAGE if polled is None else polled.pages[name]


@pytest.fixture
async def shard(redis_client: redis.asyncio.Redis, names: Names) -> AsyncIterator[Shard]:
    yield Shard(redis_client, names)


def put(item: str, after_ms: int, payload: bytes = b"1") -> Item:
    return Item(item, CLOCK_MS + after_ms, payload)


async def test_claim_creates_a_state_only_on_request_and_the_next_owner_finds_it(shard: Shard) -> None:
    assert await shard.store("a").claim("d", "", 4) is None

    begun = ViewStart(9, CLOCK_MS, ViewMetadata(12, 99))
    created = await shard.store("a").claim("d", "", 4, begin=begun)
    taken = await shard.store("b").claim("d", "id", 4, begin=ViewStart(20, 0, ViewMetadata()))

    assert LiveClaim(9, 0, CLOCK_MS, ViewMetadata(12, 99), is_new=True) == created
    assert LiveClaim(9, 0, CLOCK_MS, ViewMetadata(12, 99), is_new=False) == taken


@pytest.mark.parametrize(("definition", "topic_id", "drop"), [("e", "id", False), ("d", "other", False), ("d", "id", True)])
async def test_state_of_another_definition_or_topic_is_dropped_completely(
    shard: Shard, definition: str, topic_id: str, drop: bool
) -> None:
    store = await shard.claimed()
    await store.apply(9, 10, [Change(f"p{n}", [], [put("i", 1)]) for n in range(1_200)], ViewMetadata())

    assert await shard.store("b").claim(definition, topic_id, 1, drop=drop) is None
    assert [] == [key async for key in shard.client.scan_iter(f"{shard.keys.meta.removesuffix('meta')}*")]


async def test_page_shows_the_newest_items_first_and_counts_all(shard: Shard) -> None:
    store = await shard.claimed()
    applied = await store.apply(9, 12, [Change("p", ["x"], [put("a", 1), put("b", 3, b"3"), put("c", 2, b"2")])], ViewMetadata())

    assert ApplyReply(0, 1, is_repeated=False) == applied
    assert ShardPage("1", 3, (put("b", 3, b"3"), put("c", 2, b"2"))) == await shard.page()


async def test_repeated_put_moves_time_forward_only_and_the_newest_has_the_payload(shard: Shard) -> None:
    store = await shard.claimed()
    await store.apply(9, 10, [Change("p", [], [put("a", 5, b"5")])], ViewMetadata())
    await store.apply(10, 11, [Change("p", [], [put("a", 3, b"3")])], ViewMetadata())
    older = await shard.page()
    await store.apply(11, 12, [Change("p", [], [put("a", 5, b"6")])], ViewMetadata())

    assert ((put("a", 5, b"5"),), (put("a", 5, b"6"),)) == (older.items, (await shard.page()).items)


async def test_items_are_removed_exactly_at_their_expiry_and_then_the_clock_advances(shard: Shard) -> None:
    store = await shard.claimed()
    await store.apply(9, 10, [Change("p", [], [put("a", 1), put("b", 2)])], ViewMetadata())
    first = await store.expire(10, CLOCK_MS + EXPIRY_MS, moves_clock=True)
    second = await store.expire(10, CLOCK_MS + EXPIRY_MS + 1, moves_clock=True)
    page = await shard.page()
    third = await store.expire(10, CLOCK_MS + EXPIRY_MS + 2, moves_clock=True)

    assert ((0, False, 1), (1, False, 1), (1, False, 0)) == (first, second, third)
    assert ((put("b", 2),), EMPTY_PAGE) == (page.items, await shard.page())


async def test_clock_stays_while_more_items_are_due(shard: Shard) -> None:
    store = await shard.claimed()
    await store.apply(9, 10, [Change("p", [], [put(f"i{n}", n) for n in range(1, 6)])], ViewMetadata())
    before = await store.expire(10, CLOCK_MS + 2 * EXPIRY_MS, moves_clock=True, limit=3)
    _, (between,) = await heads_of(shard.client, [shard.keys])
    after = await store.expire(10, CLOCK_MS + 2 * EXPIRY_MS, moves_clock=True, limit=3)
    _, (head,) = await heads_of(shard.client, [shard.keys])

    assert ((3, True, 1), (2, False, 0)) == (before, after)
    assert between is not None
    assert head is not None
    assert (CLOCK_MS, CLOCK_MS + 2 * EXPIRY_MS) == (between.clock_ms, head.clock_ms)


async def test_put_that_is_due_by_the_stored_clock_is_late(shard: Shard) -> None:
    store = await shard.claimed()
    applied = await store.apply(9, 10, [Change("p", [], [put("a", -EXPIRY_MS), put("b", 1 - EXPIRY_MS)])], ViewMetadata())

    assert (1, (put("b", 1 - EXPIRY_MS),)) == (applied.expired, (await shard.page()).items)


@pytest.mark.parametrize("has_data", [False, True])
async def test_oldest_items_beyond_max_items_are_removed(shard: Shard, has_data: bool) -> None:
    store = shard.store("a", keep=2, has_data=has_data)
    await store.claim("d", "id", 1, begin=ViewStart(9, CLOCK_MS, ViewMetadata()))
    await store.apply(9, 10, [Change("p", [], [put(item, after) for after, item in enumerate("abcd", 1)])], ViewMetadata())
    kept = await shard.client.hkeys(f"{shard.keys.data_prefix}p")

    assert (2, ["d", "c"]) == ((page := await shard.page()).count, [item.item for item in page.items])
    assert ([b"c", b"d"] if has_data else []) == sorted(kept)


async def test_request_repeated_after_a_missing_reply_has_no_second_effect(shard: Shard) -> None:
    store = await shard.claimed()
    await store.apply(9, 10, [Change("p", [], [put("a", 1)])], ViewMetadata())
    repeated = await store.apply(9, 10, [Change("p", [], [put("a", 9)])], ViewMetadata())

    assert (True, (put("a", 1),)) == (repeated.is_repeated, (await shard.page()).items)


@pytest.mark.parametrize("step", ["apply", "expire"])
@pytest.mark.parametrize(("what", "cause"), [("owner", "token"), ("wipe", "no-state"), ("rollback", "fence")])
async def test_unexpected_state_is_fenced(shard: Shard, step: str, what: str, cause: str) -> None:
    store = await shard.claimed()
    image = await shard.client.dump(shard.keys.meta)
    await store.apply(9, 10, [], ViewMetadata())
    match what:
        case "owner":
            await shard.claimed("b")
        case "wipe":
            await shard.client.delete(shard.keys.meta)
        case _:
            await shard.client.restore(shard.keys.meta, 0, image or b"", replace=True)
    with pytest.raises(FencedError, match=cause):
        await (store.apply(10, 11, [], ViewMetadata()) if step == "apply" else store.expire(10, CLOCK_MS + 1, moves_clock=True))


async def test_hub_receives_differences_and_after_a_takeover_everything(shard: Shard) -> None:
    store = await shard.claimed()
    await store.apply(9, 10, [Change("p", [], [put("a", 1)]), Change("q", [], [put("b", 1)])], ViewMetadata())
    first = await shard.reader.poll(shard.keys, {"p": "", "q": "", "r": ""})
    assert first is not None
    versions = {page: one.version for page, one in first.pages.items()}
    await store.apply(10, 11, [Change("p", ["a"], [])], ViewMetadata())
    second = await shard.reader.poll(shard.keys, versions, first.head.token)
    await shard.claimed("b")
    third = await shard.reader.poll(shard.keys, {"p": "", "q": versions["q"]}, first.head.token)
    assert second is not None
    assert third is not None

    assert ShardHead("a", "1", 10, CLOCK_MS, False, 0, 1) == first.head
    assert {"p": "1", "q": "1", "r": ""} == versions
    assert {"p": EMPTY_PAGE} == second.pages
    assert {"p": EMPTY_PAGE, "q": ShardPage("1", 1, (put("b", 1),))} == third.pages


async def test_missing_shard_is_none(shard: Shard) -> None:
    now_ms, heads = await heads_of(shard.client, [shard.keys])

    assert now_ms > CLOCK_MS
    assert ([None], None) == (heads, await shard.reader.poll(shard.keys, {"p": ""}))


async def test_tabs_are_counted_across_hubs_and_a_reload_keeps_its_tab(redis_client: redis.asyncio.Redis, names: Names) -> None:
    store = PresenceStore(LiveScripts(redis_client), presence_keys(names.app_id, "here"), expiry_ms=60_000)
    first = await store.present(
        {"p": PageTabs({"t1": CLOCK_MS + 1.5, "t2": CLOCK_MS + 60_000}), "q": PageTabs({})}, CLOCK_MS, named=True
    )
    await store.present({"p": PageTabs({"t2": CLOCK_MS + 61_000})}, CLOCK_MS)
    closed = [ClosedTab("t1", CLOCK_MS + 1.5, CLOCK_MS + 5_000), ClosedTab("t2", CLOCK_MS + 60_000, CLOCK_MS + 5_000)]
    second = await store.present({"p": PageTabs({}, closed)}, CLOCK_MS)
    third = await store.present({"p": PageTabs({})}, CLOCK_MS + 5_000, named=True)

    assert {"p": PagePresence(2, ("t2", "t1")), "q": PagePresence(0, ())} == first.pages
    assert {"p": PagePresence(2, ())} == second.pages
    assert {"p": PagePresence(1, ("t2",))} == third.pages
    assert first.marker == third.marker


async def test_wiped_redis_has_another_marker(redis_client: redis.asyncio.Redis, names: Names) -> None:
    keys = presence_keys(names.app_id, "here")
    store = PresenceStore(LiveScripts(redis_client), keys, expiry_ms=60_000)
    first = await store.present({}, CLOCK_MS)
    await redis_client.delete(keys.marker)
    second = await store.present({}, CLOCK_MS)

    assert first.marker != second.marker
