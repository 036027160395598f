"""An application with everything that uses Redis: fold, read store, a subscriber of each guarantee, live view, journal."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing

from streams_app.journal.store.journal_store import JournalScripts, JournalShardReader
from streams_app.journal.store.keys import journal_keys
from streams_app.operations.groups import redis_of
from streams_app.operations.live import page_of_views
from streams_app.settings import Settings
from tests.conftest import KAFKA_CHOICE
from tests.helpers.cli.commands import Ran, run
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ROOT

GUARANTEES = ("yes", "unknown", "no") if KAFKA_CHOICE != "embedded" else ("yes", "unknown")
"""The embedded broker stores no commit metadata, which ``no`` requires."""

TAB = "tab-of-one-browser-0001"
PAGE = "shop"
CATALOGUE = """
import os
import msgspec
from streams_app import Catalogue, Event, Received, subscriber

class Changed(msgspec.Struct, frozen=True):
    id: int

changed = Event("account.changed", Changed, description="Changed.", keyed_by=None, topic=os.environ["EVENTS"])

def write(event):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(f"{event.subscriber} {event.data.id}\\n")

@subscriber(changed, idempotent="yes", description="Writes.", rate="500/s")
async def yes(event: Received[Changed]) -> None:
    write(event)

@subscriber(changed, idempotent="unknown", description="Writes.")
async def unknown(event: Received[Changed]) -> None:
    write(event)

@subscriber(changed, idempotent="no", description="Writes.")
async def no(event: Received[Changed]) -> None:
    write(event)

catalogue = Catalogue(events=(changed,), subscribers=(GUARANTEES))
"""


class WholeApp:
    """The application, the events sent to it, and whether all of them have arrived everywhere."""

    def __init__(self, site: Site, redis_url: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.site = site
        self.redis_url = redis_url or site.redis_url
        self.sent = 0
        self._ledger = site.folder / "ledger"
        self._environment = {
            "EVENTS": site.names.topic("events"),
            "LEDGER": str(self._ledger),
            "PYTHONPATH": f"{site.folder}{os.pathsep}{ROOT}",
            **(environment or {}),
        }
        site.redis_url = self.redis_url
        (site.folder / "whole_events.py").write_text(CATALOGUE.replace("GUARANTEES", ", ".join(GUARANTEES)))
        dead = site.names.topic("dead")
        self.config = site.config(
            site.fold("folded", "events", keep="last")
            + f'[read_stores.store]\nurl = "sqlite:///{site.folder}/read.db"\nfolds = ["folded"]\nsource = "carried"\n'
            + f'dead_letters = "{dead}"\n[live.seen]\nsource = "{site.names.topic("events")}"\nkind = "count"\n'
            + f'page = "page"\nitem = "id"\nexpiry = "1h"\npublic = true\ndead_letters = "{dead}"\n'
            + f'[journals.kept]\nsource = "{site.names.topic("events")}"\nkey = "account_id"\n'
            + '[live.here]\nkind = "presence"\nexpiry = "20s"\npublic = true\n'
            + '[events]\ncatalogue = "whole_events:catalogue"\n'
        )

    async def run(self, *words: str) -> Ran:
        """Run a command."""
        return await asyncio.to_thread(lambda: run(*words, "--config", str(self.config), cwd=None, **self._environment))

    async def prepare(self) -> None:
        """Create topics and tables."""
        for words in (("topics", "create"), ("read-store", "init")):
            ran = await self.run(*words)
            assert 0 == ran.code, ran.text

    def worker(self, *arguments: str) -> WorkerProcess:
        return WorkerProcess(self.config, self.site.folder, self._environment, arguments)

    async def send(self, count: int) -> None:
        """Send events, each with an account and a number of its own."""
        numbers = range(self.sent, self.sent + count)
        events = [(f"a{n}", {"id": n, "page": PAGE, "account_id": f"a{n}", "metrics": {"likes": n}}) for n in numbers]
        items = [(key.encode(), json.dumps(event).encode()) for key, event in events]
        await self.site.send("events", items, headers=[("ce_type", b"account.changed")])
        self.sent += count

    def calls(self) -> dict[str, Counter[int]]:
        """Return subscriber → number of calls with each event."""
        found: dict[str, Counter[int]] = {guarantee: Counter() for guarantee in GUARANTEES}
        for line in self._ledger.read_text().splitlines() if self._ledger.exists() else ():
            name, number = line.split()
            found[name][int(number)] += 1
        return found

    def stored(self) -> int:
        """Return the groups in the read store."""
        with closing(sqlite3.connect(self.site.folder / "read.db")) as connection:
            return int(connection.execute("SELECT COUNT(DISTINCT group_key) FROM folded_values").fetchone()[0])

    @property
    def settings(self) -> Settings:
        return Settings.load(self.config, self._environment)

    async def shown(self) -> int | None:
        """Return the items that the live view shows, where it is current."""
        (found,) = await page_of_views(self.settings, PAGE, ["seen"])
        return found.state.count if found.state.state == "ok" else None

    async def filed(self) -> int:
        """Return the events in the journal."""
        async with redis_of(self.settings) as redis:
            reader = JournalShardReader(JournalScripts(redis))
            shards = [
                await reader.status(journal_keys(self.settings.app_id, "kept", self.site.names.topic("events"), partition))
                for partition in range(self.settings.kafka.partitions)
            ]
        return sum(segment.entries for shard in shards if shard is not None for segment in shard.segments)

    async def until_all_arrived(self) -> None:
        """Return when everything sent is in read store, live view and journal, and every subscriber was called with it."""

        async def arrived() -> dict[str, int | None]:
            calls = {name: len(numbers) for name, numbers in self.calls().items()}
            return {**calls, "store": self.stored(), "live": await self.shown(), "journal": await self.filed()}

        found: dict[str, int | None] = {}

        async def is_complete() -> bool:
            nonlocal found
            found = await arrived()
            return set(found.values()) == {self.sent}

        try:
            await wait_until(is_complete, LIMIT_SECONDS, f"all {self.sent} events have arrived everywhere")
        except AssertionError as error:
            raise AssertionError(f"{error}: {found}") from error
