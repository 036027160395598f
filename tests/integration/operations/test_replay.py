"""``streams-app dead-letters replay`` on a real broker; the test writes the dead letters in the format of workers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from aiokafka import AIOKafkaProducer
from aiokafka.structs import ConsumerRecord

from streams_app.clock import SystemClock
from streams_app.embedded.ports import free_port
from streams_app.errors import TryAgainError
from streams_app.operations.dead_letter import DeadLetterSelection
from streams_app.operations.replay import DeadLetterReplay, ReplayProgress
from streams_app.operations.replay_destinations import FoldDestination
from streams_app.settings import Settings
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.cli.commands import Ran, run
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import create_topics, read_topic
from tests.helpers.worker.site import Site

LIMIT_SECONDS = 60
PARTITIONS = 4


@dataclass
class Desk:
    """Two folds of one source whose dead letters a test writes."""

    site: Site
    config: Path

    @property
    def app_id(self) -> str:
        return self.site.names.app_id

    @property
    def source(self) -> str:
        return self.site.names.topic("s")

    @property
    def dead(self) -> str:
        return f"{self.source}.dead"

    def dead_letter(self, offset: int, partition: int = 0, **headers: str) -> list[tuple[str, bytes]]:
        """Return the headers of a dead letter of the fold ``one``."""
        own_headers = {
            "reason": "no-changed", "fold": "one", "source-topic": self.source, "source-partition": str(partition),
            "source-offset": str(offset), "failed-at-ms": "1", "detail": "", "app-id": self.app_id,
        } | {name.replace("_", "-"): text for name, text in headers.items()}  # fmt: skip
        return [(name, text.encode()) for name, text in own_headers.items()]

    async def write(self, *dead_letters: tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.site.bootstrap, acks="all")
        await producer.start()
        try:
            sent = [await producer.send(self.dead, value, key, headers=headers) for key, value, headers in dead_letters]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    async def replay(self, *words: str) -> Ran:
        return await asyncio.to_thread(run, "dead-letters", "replay", "--fold", "one", *words, "--config", str(self.config))

    def replay_that_stops(self, then: Callable[[], None]) -> DeadLetterReplay:
        """Run a replay in this process that pauses after its first batch with events, while ``then`` runs."""
        settings = Settings.load(self.config, {})
        fold = settings.folds[0]
        to = FoldDestination(self.app_id, fold, settings.limits)
        made = DeadLetterReplay(settings, to, DeadLetterSelection(self.app_id, fold.name), SystemClock())
        stopped: list[int] = []

        def on_batch(done: ReplayProgress) -> None:
            if done.replayed and not stopped:
                stopped.append(done.replayed)
                then()

        made.on_batch = on_batch
        return made

    async def replayed(self, count: int) -> list[ConsumerRecord]:
        """Return the source, with at least this number of events."""
        return await read_topic(
            self.site.bootstrap, self.source, until=lambda found: len(found) >= count, timeout_seconds=LIMIT_SECONDS
        )


@pytest.fixture
async def desk(kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path) -> Desk:
    site = Site(names, kafka.bootstrap_servers, redis_server.url, tmp_path)
    await site.topics("s", "one", "two", "s.dead")
    return Desk(site, site.config(site.fold("one", "s") + site.fold("two", "s")))


def last_line(ran: Ran) -> str:
    assert 0 == ran.code, ran.text
    return ran.out.splitlines()[-1]


async def test_events_are_replayed_once_into_their_original_partition_with_application_and_fold(desk: Desk) -> None:
    key, value = event("a", "x")
    await desk.write(
        *((key, value, desk.dead_letter(7, partition)) for partition in range(PARTITIONS)),
        (key, value, desk.dead_letter(7, 2, failed_at_ms="2")),
        (key, None, desk.dead_letter(8, value_bytes_not_kept="2000000")),
        (key, b"no json", desk.dead_letter(9, reason="not-json")),
        (key, value, desk.dead_letter(7, fold="two")),
    )
    dry = await desk.replay("--dry-run")
    first = await desk.replay()
    second = await desk.replay()
    found = await desk.replayed(PARTITIONS)
    listed = await asyncio.to_thread(run, "dead-letters", "list", "--fold", "one", "--json", "--config", str(desk.config))

    assert [
        "dry run: 4 would pass now, 1 would be rejected again (not-json 1)",
        "4 replayed, 1 rejected again (not-json 1)",
        "0 replayed, 1 rejected again (not-json 1)",
    ] == [last_line(ran) for ran in (dry, first, second)]
    assert "1 duplicates: replayed once" in first.out
    assert "1 not replayed: the value was too large" in first.out
    assert "5 replayed before" in second.out
    assert [(at, key, value, (("streams-app-replay", f"{desk.app_id}/one".encode()),)) for at in range(PARTITIONS)] == sorted(
        (record.partition, record.key, record.value, record.headers) for record in found
    )
    assert "audit replay fold=one reason=any again=False events=4 refused=1 complete=True by=" in first.err
    assert "audit" not in dry.err
    assert 7 == len(listed.out.splitlines())


async def test_dead_letter_list_escapes_control_characters(desk: Desk) -> None:
    await desk.write(
        (b"a\nb\x1b[2J", b"[red]x\n\x1b]0;title\x07\xff\xe2\x80\xae", desk.dead_letter(1, detail="why\r\nnot")),
        (None, b"", desk.dead_letter(2)),
    )
    listed = await asyncio.to_thread(run, "dead-letters", "list", "--fold", "one", "--config", str(desk.config))
    lines = sorted(line.partition("Z  ")[2] or line for line in listed.out.splitlines())

    assert [
        r"    [red]x\n\u001b]0;title\u0007\xff\u202e",
        rf'no-changed       {desk.source}:0:1  key="a\nb\u001b[2J"  why\r\nnot',
        f"no-changed       {desk.source}:0:2  key=none  ",
    ] == lines


@pytest.mark.long
async def test_unselected_dead_letters_and_those_beyond_the_limit_can_be_replayed_later(desk: Desk) -> None:
    reasons = ["no-changed", "no-group"] * 3
    await desk.write(*((*event("a", f"n{at}"), desk.dead_letter(at, reason=reason)) for at, reason in enumerate(reasons)))
    lines = [
        last_line(await desk.replay(*words))
        for words in (("--reason", "no-group"), ("--limit", "1"), ("--offset", "0:4", "--key", "a"), (), (), ("--again",))
    ]
    found = await desk.replayed(12)

    assert [f"{count} replayed, 0 rejected again" for count in (3, 1, 1, 1, 0, 6)] == lines
    assert dict.fromkeys((event("a", f"n{at}")[1] for at in range(6)), 2) == Counter(record.value for record in found)


@pytest.mark.long
async def test_replay_ends_even_if_a_worker_rejects_every_event_anew(desk: Desk) -> None:
    mended = desk.config.with_name("mended.toml")
    mended.write_text(desk.config.read_text().replace('changed = "metrics"', 'changed = "tags"'))
    value = b'{"account_id": "a", "tags": ["x"]}'
    await desk.write(*((b"a", value, desk.dead_letter(at, at % PARTITIONS)) for at in range(20)))
    with desk.site.worker(desk.config) as worker:
        await worker.wait_ready()
        not_mended = last_line(await desk.replay())
        ran = last_line(await Desk(desk.site, mended).replay())
        dead_letters = await read_topic(
            desk.site.bootstrap,
            desk.dead,
            until=lambda found: sum(any(name == "reason" for name, _ in record.headers) for record in found) >= 40,
            timeout_seconds=LIMIT_SECONDS,
        )
        await worker.terminate()
    found = await desk.replayed(20)

    assert ("0 replayed, 20 rejected again (no-changed 20)", "20 replayed, 0 rejected again") == (not_mended, ran)
    assert (20, 40) == (len(found), sum(any(name == "reason" for name, _ in record.headers) for record in dead_letters))


@pytest.mark.long
async def test_interrupted_replay_reports_its_progress_and_the_next_one_continues_there(desk: Desk) -> None:
    count, so_far = 30_000, 0
    await desk.write(*((b"k", event("a", f"n{at}")[1], desk.dead_letter(at)) for at in range(count)))
    for number in (signal.SIGINT, signal.SIGTERM):
        command = [sys.executable, "-m", "streams_app", "dead-letters", "replay", "--fold", "one", "--config", str(desk.config)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        await desk.replayed(so_far + 1)
        process.send_signal(number)
        out, err = (text.decode() for text in await process.communicate())
        assert 128 + number == process.returncode, err
        summary = re.fullmatch(
            rf"interrupted after (\d+) of \d+ records of the dead-letter topic\n(?:{so_far} replayed before.*\n)?"
            r"(\d+) replayed, 0 rejected again\n",
            out,
        )
        assert summary, out
        replayed = int(summary[2])
        assert so_far + replayed == int(summary[1]) < count
        assert f"events={replayed} refused=0 complete=False" in err
        so_far += replayed
    rest = last_line(await desk.replay())
    found = await desk.replayed(count)

    assert f"{count - so_far} replayed, 0 rejected again" == rest
    assert count == len(found) == len({record.value for record in found})


@pytest.mark.apache
async def test_replay_counts_only_acknowledged_events(
    kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path
) -> None:
    site = Site(names, kafka.bootstrap_servers, redis_server.url, tmp_path)
    desk = Desk(site, site.config(site.fold("one", "s")))
    await create_topics(kafka.bootstrap_servers, [desk.source], PARTITIONS, {"max.message.bytes": "10000"})
    await site.topics("s.dead", "one")
    await desk.write(
        (*event("a", "x"), desk.dead_letter(1)),
        (*event("a", "x" * 200, text="y" * 20_000), desk.dead_letter(2)),
        (*event("a", "z"), desk.dead_letter(3)),
    )
    transaction: Any = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=names.app_id)
    await transaction.start()
    await transaction.begin_transaction()
    await transaction.send_and_wait(desk.dead, event("a", "never")[1], b"a", headers=desk.dead_letter(4))
    await transaction.abort_transaction()
    await transaction.stop()
    first = await desk.replay()
    second = await desk.replay()

    assert ["2 replayed, 0 rejected again", "0 replayed, 0 rejected again"] == [last_line(first), last_line(second)]
    assert f"1 not replayed: {desk.source} does not take records of its size any more" in first.out
    assert 2 == len(await desk.replayed(2))


async def test_concurrent_replay_is_rejected_and_names_the_running_one(desk: Desk) -> None:
    await desk.write(*((*event("a", f"n{at}"), desk.dead_letter(at)) for at in range(600)))
    others: list[Ran] = []
    words = "dead-letters", "replay", "--fold", "one", "--config", str(desk.config)
    first = desk.replay_that_stops(lambda: others.extend(run(*words, *more) for more in ((), ("--dry-run",))))
    await first.run()
    after = await desk.replay()
    rejected, dry = others

    assert 75 == rejected.code
    assert re.search(rf"another replay is in progress, begun \S+ \S+ by \S+@\S+, pid {os.getpid()}: wait until", rejected.err)
    assert (False, "") == ("audit" in rejected.err, rejected.out)
    assert 0 == dry.code
    assert (600, "0 replayed, 0 rejected again") == (first.done.replayed, last_line(after))
    assert 600 == len(await desk.replayed(600))


async def test_replay_suspended_beyond_its_lease_repeats_nothing(desk: Desk) -> None:
    count = 1_200
    await desk.write(*((*event("a", f"n{at}"), desk.dead_letter(at)) for at in range(count)))
    others: list[Ran] = []

    def meanwhile() -> None:
        with redis.Redis.from_url(desk.site.redis_url) as client:
            assert client.delete(f"{{{desk.app_id}/one}}:v1:replay")  # as when it expires
        others.append(run("dead-letters", "replay", "--fold", "one", "--config", str(desk.config)))

    first = desk.replay_that_stops(meanwhile)
    with pytest.raises(TryAgainError, match="the lease of this replay is gone"):
        await first.run()
    found = await desk.replayed(count)

    assert f"{count - first.done.replayed} replayed, 0 rejected again" == last_line(others[0])
    assert count == len(found) == len({record.value for record in found})


async def test_replay_sends_nothing_without_redis(desk: Desk) -> None:
    await desk.write((*event("a", "x"), desk.dead_letter(1)))
    text = desk.config.read_text().replace(desk.site.redis_url, f"redis://127.0.0.1:{free_port()}/0")
    blind = desk.config.with_name("blind.toml")
    blind.write_text(text)
    ran = await Desk(desk.site, blind).replay()

    assert (75, "") == (ran.code, ran.out)
    assert "only Redis knows whether another replay is in progress, and without it nothing is replayed" in ran.err
    assert "1 replayed, 0 rejected again" == last_line(await desk.replay())
