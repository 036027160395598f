"""``streams-app forget`` as a command: beside workers that are killed, and with functions of subscribers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from redis.asyncio import Redis

from streams_app.operations.forget.part import TopicBounds
from streams_app.operations.forget.topics import bounds_of
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.cli.commands import Ran, run
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.operations.forgetting import PERSON, Application, in_files
from tests.helpers.worker.site import Stage

SENT = 3_000
OF_PERSON = 7
"""The person sends each seventh event until the command begins."""


async def test_nothing_of_a_key_is_left_beside_running_workers_one_of_which_is_killed(
    kafka: KafkaServer, redis_server: RedisServer, redis_client: Redis, names: Names, tmp_path: Path
) -> None:
    stage = Stage(names, kafka.bootstrap_servers, redis_server.url, tmp_path)
    (tmp_path / "store").mkdir()
    config = stage.config(
        quiet_period="300ms",
        fold='keep = "last"',
        extra=f"""
[read_stores.rows]
url = "sqlite:///{tmp_path}/store/read.db"
folds = ["account-metrics"]
source = "carried"
dead_letters = "{stage.dead}"
[journals.days]
source = "{stage.source}"
key = "account_id"
[journals.folded]
source = "{stage.output}"
key = "@key"
[live.news]
kind = "list"
source = "{stage.source}"
page = "account_id"
expiry = "1h"
public = true
dead_letters = "{stage.dead}"
""",
    )
    await create_topics(kafka.bootstrap_servers, [stage.source, stage.dead])
    await create_topics(kafka.bootstrap_servers, [stage.output], 4, {"cleanup.policy": "compact"})
    await asyncio.to_thread(run, "read-store", "init", "--store", "rows", "--config", str(config))

    async def load(*, with_person: bool) -> None:
        accounts = [PERSON if with_person and not at % OF_PERSON else f"account_{at % 40}" for at in range(SENT)]
        events = [
            (key.encode(), b'{"account_id":"%s","metrics":{"n%d":1}}' % (key.encode(), at)) for at, key in enumerate(accounts)
        ]
        await produce(kafka.bootstrap_servers, stage.source, events)

    with stage.worker(config) as first, stage.worker(config) as second:
        await first.wait_ready()
        await second.wait_ready()
        await load(with_person=True)
        load_of_others = asyncio.create_task(load(with_person=False))
        words = "forget", PERSON, "--yes", "--tombstones", "--json", "--config", str(config)
        forgetting = asyncio.create_task(asyncio.to_thread(run, *words))
        await load_of_others
        first.kill()
        ran = await forgetting
        receipt = json.loads(ran.out)
        repeated = await asyncio.to_thread(run, "forget", PERSON, "--yes", "--json", "--config", str(config))

        given = {
            "app_id": names.app_id, "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
            "journals": [{"name": "days", "source": stage.source, "key": "account_id"}],
        }  # fmt: skip
        application, folder = Application(redis_client, given), tmp_path / "store"
        rejected = await bounds_of(application.settings, {stage.dead: 4})
        of_person = await application.traces(), in_files(folder, PERSON)
        of_other = await application.traces("account_1"), in_files(folder, "account_1")

    assert (0, 0) == (ran.code, repeated.code), ran.text + repeated.text
    assert (True, True) == (receipt["complete"], json.loads(repeated.out)["complete"])
    assert (([], []), True) == (of_person, all(of_other))
    # The groups may still have been open, and then no record of them was in the journal of folded records.
    assert {"journal days", "live view news"} <= {one["where"] for one in receipt["removed"]}
    assert [{"where": f"topic {stage.output} (output)", "what": "tombstones", "number": 1}] == receipt["written"]
    assert {TopicBounds(0, 0)} == set(rejected.values())


CATALOGUE = """
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from streams_app import Catalogue, Event, Received, subscriber


class Paid(msgspec.Struct):
    order: str


@asynccontextmanager
async def folder():
    Path("opened").touch()
    yield


async def erase(key: str) -> None:
    assert Path("opened").exists()
    if key == "broken":
        raise ValueError(key)
    with open("erased", "a") as file:
        print(key, file=file)


paid = Event("order.paid", Paid, description="Paid.", keyed_by="order", topic=TOPIC)


@subscriber(paid, idempotent="yes", description="Ships.", forget=erase)
def ship(event: Received[Paid]) -> None: ...


@subscriber(paid, idempotent="yes", description="Counts.")
def count(event: Received[Paid]) -> None: ...


catalogue = Catalogue([paid], [ship, count], lifespan=folder)
"""


async def test_function_of_a_subscriber_is_called_once_and_its_error_is_reported_without_the_key(
    kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path
) -> None:
    topic = names.topic("paid")
    (tmp_path / "shop_of_forget.py").write_text(CATALOGUE.replace("TOPIC", repr(topic)), "utf-8")
    config = tmp_path / "streams.toml"
    config.write_text(f"""
app_id = "{names.app_id}"
[kafka]
bootstrap_servers = "{kafka.bootstrap_servers}"
[redis]
url = "{redis_server.url}"
[events]
catalogue = "shop_of_forget:catalogue"
""")
    await create_topics(kafka.bootstrap_servers, [topic])

    async def forgotten(*words: str) -> Ran:
        return await asyncio.to_thread(run, "forget", *words, "--config", "streams.toml", cwd=tmp_path)

    plan, done, broken = await forgotten("anna"), await forgotten("anna", "--yes"), await forgotten("broken", "--yes", "--json")
    why = json.loads(broken.out)["not_yet"]

    assert (0, 0, 75) == (plan.code, done.code, broken.code), plan.text + done.text + broken.text
    assert "would erase subscriber ship: 1 calls of its function forget" in " ".join(plan.out.split())
    assert "subscriber count: it declares no function forget" in plan.out
    assert "anna\n" == (tmp_path / "erased").read_text()
    assert (["subscriber ship: its function forget has failed: ValueError"], False) == (why, "broken" in broken.text)
