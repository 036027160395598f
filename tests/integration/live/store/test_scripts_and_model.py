"""The scripts of live views on a real Redis agree with the model, for any order of operations."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import product
from typing import NamedTuple

import pytest
import redis.asyncio
from hypothesis import settings

from streams_app.delivery.scripts import FencedError, Script
from streams_app.live.core.model import PageContent, contents_by_page
from streams_app.live.core.operations import Change, PageChange, ViewBatch
from streams_app.live.core.record_effects import Put, Removal
from streams_app.live.core.state import EMPTY_PAGE, Item
from streams_app.live.store.keys import view_keys
from streams_app.live.store.view_store import (
    LiveScripts,
    ViewMetadata,
    ViewReader,
    ViewStart,
    ViewStore,
    heads_of,
)
from tests.conftest import Names

EXPIRY_MS = 50
PAGES = ("p", "q", "{r}")


class Variant(NamedTuple):
    """A script with a rule removed."""

    rule: str
    script: str
    text: str
    broken: str


VARIANTS = [
    Variant("no token", "apply", "state.token ~= arg.token", "false"),
    Variant("no fence", "apply", "arg.fence and state.fence ~= arg.fence", "false"),
    Variant("no GT", "apply", "{'GT'}", "{}"),
    Variant("older replaces newer", "apply", "not stored_ms or tonumber(stored_ms) <= time", "true"),
    Variant("late is put", "apply", "puts[i] > cutoff", "true"),
    Variant("clock moved by apply", "apply", "'fence', arg.to)", "'fence', arg.to, 'clock', tonumber(state.clock) + 7)"),
    Variant("due is not lowered", "apply", "call('ZADD', due, oldest[2], page)", "call('ZADD', due, 'GT', oldest[2], page)"),
    Variant("rest of a page is not due", "expire", "  settle(page)\n  expired", "  call('ZREM', due, page)\n  expired"),
    Variant("expiry does not change the version", "expire", "call('HSET', pages, page, arg.seq)", "local unchanged"),
    Variant("emptied page keeps its version", "expire", "call('HDEL', pages, page)", "local unchanged"),
    Variant("clock before the rest", "expire", "if not is_more and", "if"),
    Variant("expires too early", "expire", "local remaining,", "arg.cutoff_ms = arg.cutoff_ms + 3; local remaining,"),
    Variant("dropped items are not recorded", "apply", "  call('ZADD', dropped, 'GT',", "  local unchanged = tostring("),
    Variant("newest dropped item is not recorded", "apply", "excess - 1, excess - 1", "0, 0"),
    Variant("older dropped item replaces newer", "apply", "dropped, 'GT',", "dropped,"),
    Variant("page with dropped items alone is forgotten", "apply", "if not call('ZSCORE', dropped, page) then", "do"),
    Variant(
        "expired dropped items do not change the version",
        "expire",
        "ipairs(complete) do\n  set_version(page)",
        "ipairs(complete) do",
    ),
    Variant("clock before the dropped items", "expire", " or has_due(dropped)", ""),
    Variant("poll compares seq alone", "poll", "state.token == arg.known", "true"),
    Variant("a page of few is not found", "poll", "by_page[page] or false", "false"),
    Variant("a page of many is not found", "poll", "= versions[i] end", "= false end"),
]


class Broken(LiveScripts):
    """The scripts, one of them broken."""

    def __init__(self, client: redis.asyncio.Redis, variant: Variant) -> None:
        super().__init__(client)
        source = self.source(variant.script)
        assert 1 <= source.count(variant.text) <= 2, variant.rule
        self.by_name[variant.script] = Script(variant.script, client.register_script(source.replace(variant.text, variant.broken)))


class Run:
    """One partition under a random schedule, and the log it has read."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        names: Names,
        seed: int,
        *,
        has_data: bool,
        keep: int,
        most_events: int = 5,
        scripts: LiveScripts | None = None,
    ) -> None:
        self.client = client
        self.random = random.Random(seed)
        self.keys = view_keys(names.app_id, f"v{seed}-{int(has_data)}", "t", 0)
        self.scripts = scripts or LiveScripts(client)
        self.former: ViewStore | None = None
        self.has_data, self.keep = has_data, keep
        self.most_events = most_events
        # With a small maximum, the items that removals leave depend on how records are split into batches.
        self.has_removals = keep > 100 or most_events == 1
        self.meant: list[Put | Removal] = []
        self.now_ms = self.clock_ms = 1_000
        self.store = self._owner()
        self.versions: dict[str, str] = dict.fromkeys(PAGES, "")
        self.token = ""
        self.seen: dict[str, PageContent] = {}

    def _owner(self) -> ViewStore:
        token = f"t{self.random.random()}"
        return ViewStore(self.scripts, self.keys, token, has_data=self.has_data, expiry_ms=EXPIRY_MS, keep=self.keep)

    async def claim(self) -> None:
        self.former = self.store
        self.store = self._owner()
        await self.store.claim("d", "", 1, begin=ViewStart(-1, self.now_ms, ViewMetadata()))

    def _event(self) -> Put | Removal:
        page, name = self.random.choice(PAGES), self.random.choice("abcde")
        if self.has_removals and self.random.random() < 0.2:
            return Removal(page, name)
        time_ms = self.now_ms - self.random.randrange(2 * EXPIRY_MS)
        return Put(page, Item(name, time_ms, b"%d" % len(self.meant) if self.has_data else b""))

    async def apply(self) -> None:
        if self.most_events > 1:
            await self._apply(self.random.randrange(1, self.most_events + 1))
            return
        for _ in range(self.random.randrange(1, 12)):
            await self._apply(1)

    async def _apply(self, events: int) -> None:
        fence, part = len(self.meant) - 1, ViewBatch(0)
        for _ in range(events):
            event = self._event()
            self.meant.append(event)
            change = part.pages.setdefault(event.page, PageChange())
            change.put(event.item) if isinstance(event, Put) else change.remove(event.item)
        changes: list[Change] = part.changes
        for _ in range(1 + self.random.randrange(2)):  # a lost reply: it is sent once more
            await self.store.apply(fence, len(self.meant) - 1, changes, ViewMetadata())

    async def intrude(self) -> None:
        """Check that a former owner, and one at another position, are rejected."""
        fence = len(self.meant) - 1
        change = Change("p", ["a", "b"], [Item("zombie", self.now_ms, b"z")])
        if self.former is not None:
            with suppress(FencedError):
                await self.former.apply(fence, fence + 1, [change], ViewMetadata())
        with suppress(FencedError):
            await self.store.apply(fence - 1, fence + 2, [change], ViewMetadata())

    async def expire(self) -> None:
        self.now_ms += self.random.randrange(30)
        is_more, clock_ms = True, self.clock_ms
        while is_more:
            _, (head,) = await heads_of(self.client, [self.keys])
            assert head is not None
            assert clock_ms == head.clock_ms
            is_more = (await self.store.expire(len(self.meant) - 1, self.now_ms, moves_clock=True, limit=2)).is_more

    async def step(self) -> None:
        await self.random.choice([self.apply, self.apply, self.expire, self.claim, self.intrude])()
        await self.check()

    async def check(self) -> None:
        """Check that a hub that polls differences has the content of the model."""
        _, (head,) = await heads_of(self.client, [self.keys])
        assert head is not None
        # Together with empty pages: the script handles few and many requested pages in different ways.
        others = dict.fromkeys(map(str, range(self.random.choice((0, 10)))), "")
        reader = ViewReader(self.client, self.scripts, 50, has_data=self.has_data)
        polled = await reader.poll(self.keys, self.versions | others, self.token)
        assert polled is not None
        assert all(polled.pages[name] == EMPTY_PAGE for name in others if name in polled.pages)
        self.token = polled.head.token
        for name in self.versions.keys() & polled.pages.keys():
            page = polled.pages[name]
            self.versions[name] = page.version
            self.seen[name] = PageContent(list(reversed(page.items)), page.has_dropped)
        assert str(len(self.meant) - 1) == str(head.fence)
        assert self.now_ms >= head.clock_ms >= self.clock_ms
        self.clock_ms = head.clock_ms
        expected = contents_by_page(self.meant, head.clock_ms, EXPIRY_MS, self.keep)

        assert expected == {page: content for page, content in self.seen.items() if content != PageContent([])}
        assert {page.encode() for page in expected} == set(await self.client.hgetall(self.keys.pages))


@pytest.mark.parametrize("has_data", [False, True])
@pytest.mark.parametrize(("keep", "most_events"), [(1_000, 5), (3, 5), (1, 5), (2, 1)])
async def test_scripts_agree_with_the_model(
    redis_client: redis.asyncio.Redis, names: Names, has_data: bool, keep: int, most_events: int
) -> None:
    for seed in range(max(5, settings().max_examples // 20)):  # in CI 20
        run = Run(redis_client, names, seed, has_data=has_data, keep=keep, most_events=most_events)
        await run.claim()
        for _ in range(25):
            await run.step()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.rule)
async def test_script_without_one_of_its_rules_is_detected(
    redis_client: redis.asyncio.Redis, names: Names, variant: Variant
) -> None:
    for seed, has_data in product(range(40), (False, True)):
        keep, most_events = ((1_000, 5), (1, 5), (2, 1))[seed % 3]
        run = Run(
            redis_client, names, seed, has_data=has_data, keep=keep, most_events=most_events,
            scripts=Broken(redis_client, variant),
        )  # fmt: skip
        await run.claim()
        try:
            for _ in range(25):
                await run.step()
        except AssertionError:
            return
    pytest.fail("no run differs from the model")
