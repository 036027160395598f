"""A source that is deleted, made again and filled while no worker runs: refused, and after a reset everything follows."""

from __future__ import annotations

import asyncio

import pytest

from tests.checker import event
from tests.integration.commands import run
from tests.integration.site import Site

pytestmark = pytest.mark.timeout(200)


async def test_a_topic_filled_beyond_the_old_fence_is_refused_and_after_a_reset_nothing_of_it_is_missing(site: Site) -> None:
    """Offsets alone cannot tell: the new log goes beyond what was folded of the old one."""
    await site.topics("events", "folded", "events.dead", partitions=1)
    config = site.config(site.fold("folded", "events"))
    with site.worker(config) as worker:
        await worker.wait_ready()
        await site.send("events", [event("a", f"old{number}") for number in range(100)])
        before = await site.outcome("folded", 100)
        assert 0 == await worker.terminate()
    await site.make_again("events", partitions=1)
    await site.send("events", [event("a" if number < 50 else "b", f"new{number}") for number in range(200)])
    with site.worker(config) as worker:
        refused, said = await worker.wait_exit(60), worker.log()
    done = await asyncio.to_thread(run, "reset", "--fold", "folded", "--yes", "--config", str(config))
    with site.worker(config) as worker:
        await worker.wait_ready()
        after = await site.outcome("folded", 300)
        assert 0 == await worker.terminate()

    assert (1, 0) == (refused, done.code), said + done.text
    assert "deleted and made again. Run `streams-app reset --fold folded`" in said
    assert {f"old{number}" for number in range(100)} == set(before.ids_of)
    assert {f"new{number}" for number in range(200)} == set(after.ids_of) - set(before.ids_of)
