"""A topic recreated and filled beyond what was read while its worker is stopped: detected although offsets continue."""

from __future__ import annotations

import pytest

from tests.helpers.cli.commands import run
from tests.helpers.folding.checker import event
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site

pytestmark = [pytest.mark.apache, pytest.mark.timeout(200)]

OLD, NEW = 50, 120

CATALOGUE = """
import os
import msgspec
from streams_app import Catalogue, Event, Received, subscriber

class Liked(msgspec.Struct, frozen=True):
    account_id: str

liked = Event("post.liked", Liked, description="Liked.", keyed_by="account_id", topic=os.environ["EVENTS"])

@subscriber(liked, idempotent="yes", description="Writes a line.")
async def ship(event: Received[Liked]) -> None:
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(event.data.account_id + "\\n")

catalogue = Catalogue(events=(liked,), subscribers=(ship,))
"""


async def recreated_beyond(site: Site) -> None:
    await site.recreate("events", partitions=1)
    await site.send("events", [event(f"new{number}", "likes") for number in range(NEW)])


async def test_fold_ends_and_names_the_command(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    config = site.config(site.fold("folded", "events"), session_timeout="30s")
    with site.worker(config) as worker:
        await worker.wait_ready()
        await site.send("events", [event(f"old{number}", "likes") for number in range(OLD)])
        await site.outcome("folded", OLD)
        worker.stop_signal()
        await recreated_beyond(site)
        worker.continue_signal()
        code = await worker.wait_exit(LIMIT_SECONDS)

    assert 1 == code
    assert "deleted and created again. Run `streams-app reset --fold folded`" in worker.log()


async def test_subscriber_does_not_run_and_its_worker_is_not_ready(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = site.folder / "ledger"
    ledger.touch()
    (site.folder / "its_likes.py").write_text(CATALOGUE)
    for name, value in (("EVENTS", site.names.topic("events")), ("LEDGER", str(ledger)), ("PYTHONPATH", str(site.folder))):
        monkeypatch.setenv(name, value)
    config = site.config('[events]\ncatalogue = "its_likes:catalogue"\n', session_timeout="30s")
    await site.topics("events", partitions=1)
    created = run("topics", "create", "--config", str(config))
    with site.worker(config) as worker:
        await worker.wait_ready()
        await site.send("events", [event(f"old{number}", "likes") for number in range(OLD)])
        await wait_until(lambda: OLD == len(ledger.read_text().splitlines()), LIMIT_SECONDS, "all of the old log was read")
        worker.stop_signal()
        await recreated_beyond(site)
        worker.continue_signal()

        async def is_rejected() -> bool:
            return "reset --subscriber ship" in (await worker.get("/health/ready"))[1]

        async def has_read_all() -> bool:
            return {f"new{number}" for number in range(NEW)} <= set(ledger.read_text().splitlines())

        async def is_settled() -> bool:
            return await is_rejected() or await has_read_all()

        await wait_until(is_settled, LIMIT_SECONDS, "the worker is not ready, or everything was read")

    assert 0 == created.code, created.text
