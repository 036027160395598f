"""Which tabs a hub counts, on a real Redis, at the times that the test gives."""

from __future__ import annotations

import pytest
import redis.asyncio

from streams_app.live.hub.presence import LAPSE_MS, SETTLE_MS, Presence
from streams_app.live.store.keys import presence_keys
from streams_app.live.store.view_store import LiveScripts, PresenceStore
from tests.conftest import Names
from tests.integration.live.hub.views import VISITORS, Start

LIMIT = 3
PAGE = "7"
STEP_MS = 1_000


Counted = tuple[str, int | None]
"""State and count of the page, as a browser receives them."""


class OneHub:
    """The presence of one hub, which is asked once a second."""

    def __init__(self, client: redis.asyncio.Redis, names: Names, limit: int = LIMIT) -> None:
        store = PresenceStore(LiveScripts(client), presence_keys(names.app_id, VISITORS.name), VISITORS.expiry_ms)
        self.presence = Presence(VISITORS, store, limit)
        self.now_ms = 1_000_000

    async def after(self, ms: int = STEP_MS, *, is_open: bool = True) -> Counted:
        self.now_ms += ms
        await self.presence.present_once(self.now_ms, [PAGE] if is_open else [])
        state = self.presence.state(PAGE, self.now_ms)
        return state.state, state.count


@pytest.fixture
def hub(redis_client: redis.asyncio.Redis, names: Names) -> OneHub:
    return OneHub(redis_client, names)


async def test_first_page_after_any_pause_is_counted_at_once(hub: OneHub) -> None:
    hub.presence.join(PAGE, "a")
    assert ("ok", 1) == await hub.after()
    hub.presence.leave(PAGE, "a")
    for _ in range(30):
        await hub.after(is_open=False)
    hub.presence.join(PAGE, "b")

    assert ("ok", 1) == await hub.after()


async def test_count_is_reading_after_redis_was_away_while_a_page_was_open(hub: OneHub) -> None:
    hub.presence.join(PAGE, "a")
    await hub.after()

    assert ("reading", None) == await hub.after(11_000)
    assert ("ok", 1) == await hub.after(SETTLE_MS)


async def test_one_client_adds_at_most_the_limit_of_tabs(hub: OneHub, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(40):
        hub.presence.join(PAGE, f"one-{number}", "203.0.113.7")
    hub.presence.join(PAGE, "other", "198.51.100.1")
    hub.presence.join(PAGE, "unlimited-1")
    hub.presence.join(PAGE, "unlimited-2")

    assert ("ok", LIMIT + 3) == await hub.after()
    assert ("ok", LIMIT + 3) == await hub.after()
    assert 1 == len([record for record in caplog.records if "live_server.tabs_per_client" in record.getMessage()])


async def test_client_that_changes_the_names_of_its_tabs_adds_at_most_the_limit(hub: OneHub) -> None:
    counts = set()
    open_tabs: list[str] = []
    for number in range(200):
        if len(open_tabs) == LIMIT:
            hub.presence.leave(PAGE, open_tabs.pop(number % LIMIT))
        open_tabs.append(f"tab-{number}")
        hub.presence.join(PAGE, open_tabs[-1], "203.0.113.7")
        counts.add(await hub.after(100))

    assert {"ok"} == {state for state, _ in counts}
    assert LIMIT == max(count or 0 for _, count in counts)


async def test_tab_counts_once_another_of_its_client_has_lapsed(hub: OneHub) -> None:
    for tab in "abcd":
        hub.presence.join(PAGE, tab, "203.0.113.7")
    assert ("ok", LIMIT) == await hub.after()
    for tab in "abc":
        hub.presence.leave(PAGE, tab)
    await hub.after()

    assert ("ok", 1) == await hub.after(LAPSE_MS)


async def test_reloaded_tab_keeps_its_place(hub: OneHub) -> None:
    for tab in "abcd":
        hub.presence.join(PAGE, tab, "203.0.113.7")
    await hub.after()
    hub.presence.leave(PAGE, "a")
    await hub.after()
    hub.presence.join(PAGE, "a", "203.0.113.7")

    assert ("ok", LIMIT) == await hub.after()
    assert ("ok", LIMIT) == await hub.after(2 * LAPSE_MS)


async def test_limit_of_0_counts_every_tab(redis_client: redis.asyncio.Redis, names: Names) -> None:
    hub = OneHub(redis_client, names, 0)
    for number in range(40):
        hub.presence.join(PAGE, str(number), "203.0.113.7")

    assert ("ok", 40) == await hub.after()


async def test_address_of_a_connection_limits_its_tabs(start: Start) -> None:
    async with start(VISITORS, tabs_per_client=2) as hub:
        one = [await hub.events(f"/live/7/events?view=visitors&tab=tab-000-{number}") for number in range(4)]
        await one[0].until("visitors", count=2)
        other = await hub.events("/live/7/events?view=visitors", headers={"X-Forwarded-For": "192.0.2.66, 198.51.100.1"})
        await other.until("visitors", count=3)
        await one[0].until("visitors", count=3)
