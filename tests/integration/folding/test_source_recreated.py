"""A source recreated and filled while no worker runs is rejected, and after a reset every component follows."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

from tests.helpers.cli.commands import run
from tests.helpers.folding.checker import event
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import Site

pytestmark = pytest.mark.timeout(200)


def read_store(site: Site) -> str:
    return (
        f'[read_stores.dashboard]\nurl = "sqlite:///{site.folder}/read.db"\nfolds = ["folded"]\nsource = "carried"\n'
        f'dead_letters = "{site.names.topic("events.dead")}"\n'
    )


def values(site: Site) -> dict[tuple[str, str], int]:
    with closing(sqlite3.connect(site.folder / "read.db")) as connection:
        rows = connection.execute("SELECT group_key, name, value FROM folded_values")
        return {(group, name): value for group, name, value in rows}


@pytest.mark.long
async def test_topic_filled_beyond_the_old_fence_is_rejected_and_after_a_reset_everything_follows(site: Site) -> None:
    """Offsets alone do not show it: the new log extends beyond the old fence, but its versions are lower."""
    await site.topics("events", "folded", "events.dead", partitions=1)
    fold = site.fold("folded", "events", keep="last")
    old = {("a", f"n{number}"): 1 for number in range(100)}
    new = {("a" if number < 50 else "b", f"n{number}"): 2 for number in range(200)}
    with site.worker(site.config(fold)) as worker:
        await worker.wait_ready()
        await site.send("events", [event(group, name) for group, name in old])
        await site.outcome("folded", 100)
        assert 0 == await worker.terminate()
    await site.recreate("events", partitions=1)
    await site.send("events", [event(group, name, metrics={name: 2}) for group, name in new])
    # The read store has not seen anything yet: the rest of the old topic comes first.
    config = site.config(fold + read_store(site))
    assert 0 == run("read-store", "init", "--config", str(config)).code
    with site.worker(site.config(fold, "other.toml")) as worker:
        exit_code, log = await worker.wait_exit(60), worker.log()
    command = ("reset", "--fold", "folded", "--config", str(config))
    dry, nothing = await asyncio.to_thread(run, *command), values(site)
    done, between = await asyncio.to_thread(run, *command, "--yes"), values(site)
    with site.worker(config) as worker:
        await worker.wait_ready()
        outcome = await site.outcome("folded", 300)
        after = await wait_until(lambda: values(site) == old | new, 60, "the read store has everything of the new topic")
        assert 0 == await worker.terminate()

    assert (1, 0, 0) == (exit_code, dry.code, done.code), log + dry.text + done.text
    assert "deleted and created again. Run `streams-app reset --fold folded`" in log
    assert "of its output topic would first be written to read store dashboard" in dry.out
    assert ({}, old, True) == (nothing, between, after)
    assert {name for _, name in new} == set(outcome.ids_of)
