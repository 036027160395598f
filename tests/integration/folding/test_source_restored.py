"""A broker restarts on an older copy of its disk: every reader reads the records there now, and reports the loss."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from streams_app.operations.live import page_of_views
from streams_app.settings import Settings
from tests.conftest import Names, RedisServer
from tests.helpers.cli.commands import run
from tests.helpers.folding.checker import event
from tests.helpers.journal.journaled import Journaled
from tests.helpers.kafka.topics import read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, metric
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.apache_kafka import ApacheKafka
from tests.servers.cache import ROOT

pytestmark = [pytest.mark.apache, pytest.mark.long, pytest.mark.timeout(400)]

KEPT, LOST, NEW = 90, 10, 30


class Disk:
    """A broker, its disk, and a copy of it."""

    def __init__(self, home: Path) -> None:
        self.home, self._copy = home, home.with_name("copy")
        self.broker = ApacheKafka.start(directory=home)

    def copy(self) -> None:
        """Copy the disk while the broker is stopped."""
        self.broker.stop()
        shutil.copytree(self.home / "data", self._copy)
        self._start()

    def go_back(self, topic: str = "") -> None:
        """Restart the broker on the copy, or with the logs of one topic from the copy."""
        self.broker.stop()
        for folder in self._copy.glob(f"{topic}-[0-9]*") if topic else [self._copy]:
            place = self.home / "data" / folder.relative_to(self._copy)
            shutil.rmtree(place)
            shutil.copytree(folder, place)
        self._start()

    def _start(self) -> None:
        self.broker = ApacheKafka.start(self.broker.port, self.home)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "kafka")
    yield made
    made.broker.stop()


@pytest.fixture
def place(disk: Disk, redis_server: RedisServer, names: Names, tmp_path: Path) -> Site:
    return Site(names, disk.broker.bootstrap_servers, redis_server.url, tmp_path)


def events(tag: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    return [event(f"{tag}{number}", "likes") for number in range(count)]


def groups(tag: str, count: int) -> set[str]:
    return {f"{tag}{number}" for number in range(count)}


async def folded(site: Site, wanted: set[str]) -> dict[str, tuple[str, int]]:
    """Return the id of each record of these groups → group and version, once all exist."""

    def are_there(records: list[ConsumerRecord]) -> bool:
        return wanted <= {(record.key or b"").decode() for record in records}

    records = await read_topic(site.bootstrap, site.names.topic("folded"), until=are_there, timeout_seconds=LIMIT_SECONDS)
    values = [(record.key.decode(), json.loads(record.value)["fold"]) for record in records]
    return {fold["id"]: (group, fold["version"]) for group, fold in values if group in wanted}


@pytest.mark.parametrize("worker_is", ["stopped", "killed", "running"])
async def test_events_after_the_common_end_are_folded_and_the_missing_ones_are_reported(
    place: Site, disk: Disk, worker_is: str
) -> None:
    await place.topics("events", "folded", "events.dead", partitions=1)
    config = place.config(place.fold("folded", "events", quiet_period="500ms"))
    checked = ""
    with ExitStack() as workers:
        worker = workers.enter_context(place.worker(config))
        await worker.wait_ready()
        await place.send("events", events("kept", KEPT))
        await folded(place, groups("kept", KEPT))
        disk.copy()
        await place.send("events", events("lost", LOST))
        before = await folded(place, groups("lost", LOST))
        if worker_is == "stopped":
            assert 0 == await worker.terminate()
        elif worker_is == "killed":
            worker.kill()
        disk.go_back()
        await place.send("events", events("new", NEW))
        if worker_is != "running":
            checked = run("check", "--config", str(config)).text
            worker = workers.enter_context(place.worker(config))
        after = await folded(place, groups("new", NEW))
        await worker.wait_ready()
        reported_loss = metric(worker, "streams_app_log_went_back_events_total")
        log = worker.log()

    assert LOST == reported_loss, log
    assert f"offsets={KEPT}-{KEPT + LOST - 1}" in log
    assert "deleted and created again" not in log + checked
    assert worker_is == "running" or f"had read from offset {KEPT} to {KEPT + LOST - 1}" in checked, checked
    assert set() == before.keys() & after.keys()
    assert max(version for _, version in before.values()) < min(version for _, version in after.values())


CATALOGUE = """
import os
from typing import Any
import msgspec
from streams_app import Catalogue, Event, Received, subscriber

class Liked(msgspec.Struct, frozen=True):
    account_id: str
    metrics: dict[str, Any]

liked = Event("post.liked", Liked, description="Liked.", keyed_by="account_id", topic=os.environ["EVENTS"])

def wrote(who, event):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(f"{who} {event.data.account_id}\\n")

@subscriber(liked, idempotent="yes", description="May run again.")
def again(event: Received[Liked]) -> None:
    wrote("again", event)

@subscriber(liked, idempotent="unknown", description="Runs once.")
def once(event: Received[Liked]) -> None:
    wrote("once", event)

@subscriber(liked, idempotent="no", description="Runs at most once.")
def never(event: Received[Liked]) -> None:
    wrote("never", event)

catalogue = Catalogue(events=(liked,), subscribers=(again, once, never))
"""
SUBSCRIBERS = ("again", "once", "never")


class Readers:
    """An application with one reader of each kind: subscribers, a fold with its read store, a live view."""

    def __init__(self, site: Site) -> None:
        self.site = site
        topic = site.names.topic
        self.ledger, self.database = site.folder / "ledger", site.folder / "read.db"
        self.ledger.touch()
        (site.folder / "its_events.py").write_text(CATALOGUE)
        self.environment: dict[str, Any] = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(site.folder)]), "EVENTS": topic("events"), "LEDGER": str(self.ledger),
        }  # fmt: skip
        self.config = site.config(
            '[events]\ncatalogue = "its_events:catalogue"\n'
            + site.fold("folded", "events", keep="last", quiet_period="500ms")
            + f'[read_stores.store]\nurl = "sqlite:///{self.database}"\nfolds = ["folded"]\nsource = "carried"\n'
            f'[live.view]\nsource = "{topic("events")}"\nkind = "count"\npage = "metrics.page"\nitem = "account_id"\n'
            'expiry = "1h"\npublic = true\n'
        )

    async def open(self) -> None:
        await self.site.topics("events", partitions=1)
        for command in (("topics", "create"), ("read-store", "init")):
            ran = run(*command, "--config", str(self.config), **self.environment)
            assert ran.code == 0, ran.text

    def worker(self) -> WorkerProcess:
        return WorkerProcess(self.config, self.site.folder, self.environment)

    async def send(self, tag: str, count: int) -> None:
        await self.site.send("events", [event(f"{tag}{n}", "page", metrics={"page": "p"}) for n in range(count)])

    def was_called(self, who: str, wanted: set[str]) -> bool:
        return wanted <= {line.split()[1] for line in self.ledger.read_text().splitlines() if line.split()[0] == who}

    def stored(self) -> set[str]:
        with closing(sqlite3.connect(self.database)) as connection:
            return {group for (group,) in connection.execute("SELECT group_key FROM folded_values")}

    async def shown(self) -> set[str]:
        (found,) = await page_of_views(Settings.load(self.config, {}), "p", ["view"])
        return {item.item for item in found.items} if found.state.state == "ok" else set()

    async def until_all_have(self, wanted: set[str]) -> None:
        for who in SUBSCRIBERS:
            await wait_until(partial(self.was_called, who, wanted), LIMIT_SECONDS, f"{who} was called with all")
        await wait_until(lambda: wanted <= self.stored(), LIMIT_SECONDS, "the read store has all")

        async def is_shown() -> bool:
            return wanted <= await self.shown()

        await wait_until(is_shown, LIMIT_SECONDS, "the live view shows all")


@pytest.mark.parametrize("comes_back", ["disk", "log"])
async def test_every_reader_continues_from_the_common_end(place: Site, disk: Disk, comes_back: str) -> None:
    """The disk also restores the commits of all groups; the log alone keeps them, as after an unclean election."""
    readers = Readers(place)
    await readers.open()
    with readers.worker() as worker:
        await worker.wait_ready()
        await readers.send("kept", KEPT)
        await readers.until_all_have(groups("kept", KEPT))
        disk.copy()
        await readers.send("lost", LOST)
        await readers.until_all_have(groups("kept", KEPT) | groups("lost", LOST))
        assert 0 == await worker.terminate(), worker.log()
    disk.go_back("" if comes_back == "disk" else place.names.topic("events"))
    await readers.send("new", NEW)
    checked = run("check", "--config", str(readers.config), **readers.environment).text
    with readers.worker() as worker:
        await readers.until_all_have(groups("new", NEW))
        assert set() == await readers.shown() & groups("lost", LOST)
        assert 0 == await worker.terminate()
    calls = readers.ledger.read_text().splitlines()

    assert "deleted and created again" not in worker.log() + checked
    assert [] == [line for line in calls if calls.count(line) > 1 and not line.startswith("again")]
    readers_named = ["live view view", "fold folded", *(f"subscriber {name}" for name in SUBSCRIBERS if comes_back == "log")]
    assert [] == [name for name in readers_named if f"{name} had read from offset {KEPT}" not in checked], checked


@pytest.mark.parametrize("worker_is", ["stopped", "running"])
async def test_journal_refiles_from_the_segment_that_holds_the_common_end(place: Site, disk: Disk, worker_is: str) -> None:
    journaled = Journaled(place)
    config = journaled.config()
    await journaled.topics(partitions=1)
    with ExitStack() as workers:
        worker = workers.enter_context(place.worker(config))
        await journaled.put(range(KEPT))
        await journaled.has(range(KEPT))
        disk.copy()
        await journaled.put(range(1_000, 1_000 + LOST))
        await journaled.has([*range(KEPT), *range(1_000, 1_000 + LOST)])
        if worker_is == "stopped":
            assert 0 == await worker.terminate()
        disk.go_back()
        await journaled.put(range(2_000, 2_000 + NEW))
        if worker_is == "stopped":
            worker = workers.enter_context(place.worker(config))
        await journaled.has([*range(KEPT), *range(2_000, 2_000 + NEW)])
        reported_loss = metric(worker, "streams_app_log_went_back_events_total")
        log = worker.log()

    assert LOST == reported_loss, log
    assert f"offsets={KEPT}-{KEPT + LOST - 1}" in log
    assert "the log of a journal went back: rebuilt from offset 0" in log
