"""Commands set offsets of subscribers, reset them, check them, and run them by name."""

from __future__ import annotations

import pytest
import redis.asyncio
from aiokafka.admin import NewPartitions

from tests.conftest import KafkaServer
from tests.helpers.cli.commands import run
from tests.helpers.kafka.topics import admin_of, create_topics, produce
from tests.helpers.subscribers.orders import CATALOGUE, THANK, Orders
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS

pytestmark = pytest.mark.timeout(200)


@pytest.mark.apache
async def test_reset_moves_the_offset_of_a_subscriber_that_no_worker_runs(
    orders: Orders, redis_client: redis.asyncio.Redis
) -> None:
    (orders.site.folder / "mended").touch()
    await orders.run("topics", "create")
    reset = ("reset", "--subscriber", "ship", "--at")
    with orders.worker() as worker:
        await orders.pay("o1")
        await orders.lines(2)
        running = await orders.run(*reset, "earliest", "--yes")
        await worker.terminate()
    keys = f"{{{orders.site.names.app_id}/ship/*"
    before = [key async for key in redis_client.scan_iter(keys)]
    dry = await orders.run(*reset, "earliest")
    kept = [key async for key in redis_client.scan_iter(keys)]
    done = await orders.run(*reset, "earliest", "--yes")
    left = [key async for key in redis_client.scan_iter(keys)]
    offsets = [await orders.committed(name, "paid") for name in ("ship", "thank")]
    with orders.worker() as worker:
        lines = await orders.lines(3)
        await worker.terminate()
    skipped = await orders.run(*reset, "latest", "--yes")

    assert (1, True) == (running.code, "stop them first" in running.err)
    assert (len(before), 0) == (len(kept), len(left))
    assert (0, "nothing was changed; --yes does it") == (dry.code, dry.out.splitlines()[-1])
    assert (0, [0, 1]) == (done.code, offsets), done.text
    assert "audit reset subscriber=ship at=earliest partitions=8 keys=" in done.err
    assert ["ship", "ship", "thank"] == [line.split()[0] for line in lines]
    assert (0, 1) == (skipped.code, await orders.committed("ship", "paid"))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--subscriber", "ship"), "--subscriber and --at belong together"),
        (("--fold", "folded", "--at", "latest"), "--subscriber and --at belong together"),
        (("--fold", "folded", "--subscriber", "ship", "--at", "latest"), "name one of --fold, --subscriber, --live and --journal"),
        (("--subscriber", "ship", "--at", "yesterday"), "--at: neither earliest nor latest"),
        (
            ("--subscriber", "shipp", "--at", "latest"),
            "there is no subscriber 'shipp', did you mean 'ship'? (there are: ",
        ),
    ],
)
async def test_contradictory_reset_is_rejected(orders: Orders, words: tuple[str, ...], fault: str) -> None:
    ran = await orders.run("reset", *words)

    assert (1, True) == (ran.code, fault in ran.err), ran.err


@pytest.mark.apache
async def test_topics_create_sets_the_initial_offsets_of_an_at_most_once_subscriber_once(orders: Orders) -> None:
    orders.declare(
        CATALOGUE.replace('idempotent="yes", description="Thanks', 'idempotent="no", start="latest", description="Thanks')
    )
    await orders.site.topics("paid")
    await orders.pay("o1")
    first = await orders.run("topics", "create")
    after_first = await orders.committed("thank", "paid")
    await orders.pay("o2")
    second = await orders.run("topics", "create")

    assert "placed   subscriber thank in 8 partitions, by its `start`" in first.out
    assert "placed" not in second.out
    assert (0, 1, 1) == (second.code, after_first, await orders.committed("thank", "paid"))
    assert await orders.has_begun("thank")


async def test_broker_without_commit_metadata_cannot_run_an_at_most_once_subscriber(orders: Orders, kafka: KafkaServer) -> None:
    if kafka.is_apache:
        pytest.skip("Apache Kafka keeps it")
    orders.declare(CATALOGUE.replace(THANK, 'idempotent="no", description="Thanks'))
    ran = await orders.run("topics", "create")

    assert (1, True) == (ran.code, "idempotent = 'no' cannot be promised there" in ran.err)
    assert "paid.thank.dead" not in ran.out


@pytest.mark.apache
async def test_check_reports_what_subscribers_lack(orders: Orders) -> None:
    orders.declare(CATALOGUE.replace(THANK, 'idempotent="no", description="Thanks'))
    missing = await orders.run("check")
    await create_topics(orders.site.bootstrap, [orders.topic("paid")], configs={"retention.ms": "7200000"})
    await orders.run("topics", "create")
    found = await orders.run("check")

    assert (1, 0) == (missing.code, found.code), found.text
    for topic, role in (("paid.ship.dead", "dead letters"), ("again", "put back")):
        assert f"topic {orders.topic(topic)} ({role}) does not exist" in missing.out
        assert f"topic {orders.topic(topic)} ({role}) has 4 partitions" in found.out
    assert "keeps its log for 2 h, retries and patience take up to 1 h 11 min" in found.out
    assert "subscriber thank: its commits record what has begun" in found.out
    assert "subscriber thank remembers ids for 1h" in found.out


async def test_check_reports_faults_of_a_catalogue(orders: Orders) -> None:
    orders.declare("catalogue = 1")
    ran = await orders.run("check")

    assert (1, True) == (ran.code, "its_events:catalogue is of type int, not Catalogue" in ran.out)


@pytest.mark.parametrize("words", [(), ("--only", "ship")])
def test_worker_reports_faults_of_its_catalogue_before_it_contacts_a_server(orders: Orders, words: tuple[str, ...]) -> None:
    orders.declare("catalogue = 1")
    away = {"STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "STREAMS_APP_REDIS_URL": "redis://127.0.0.1:1/0"}
    ran = run("worker", *words, "--config", str(orders.config), cwd=None, **orders.environment, **away)

    assert (1, True) == (ran.code, "its_events:catalogue is of type int, not Catalogue" in ran.err), ran.err


async def test_worker_of_one_subscriber_runs_no_other_and_no_fold(orders: Orders) -> None:
    await orders.run("topics", "create")
    (orders.site.folder / "mended").touch()
    with orders.worker("--only", "thank") as alone:
        await orders.pay("o1")
        first = await orders.lines(1)
        code = await alone.terminate()
    with orders.worker():
        both = await orders.lines(2)

    assert (0, ["thank"]) == (code, [line.split()[0] for line in first])
    assert ["ship", "thank"] == [line.split()[0] for line in both]
    assert "runs=thank " in alone.log()


async def test_application_without_folds_runs_its_subscribers(orders: Orders) -> None:
    orders.config = orders.site.config('[events]\ncatalogue = "its_events:catalogue"\n')
    (orders.site.folder / "mended").touch()
    created = await orders.run("topics", "create")
    with orders.worker() as worker:
        await orders.pay("o1")
        lines = await orders.lines(2)
        await worker.wait_ready()
        code = await worker.terminate()
    checked = await orders.run("check")

    assert 4 == len(created.out.splitlines())
    assert "runs=ship,thank " in worker.log()
    assert (0, ["ship", "thank"]) == (code, [line.split()[0] for line in lines])
    assert 0 == checked.code, checked.text


@pytest.mark.apache
async def test_at_most_once_subscriber_runs_from_the_offsets_set_by_a_command(orders: Orders) -> None:
    orders.declare(CATALOGUE.replace(THANK, 'idempotent="no", description="Thanks'))
    await orders.site.topics("paid", "paid.dead", "folded", "again", "paid.ship.dead", "paid.thank.dead")
    await orders.pay("o1")
    with orders.worker("--only", "thank") as missing_initial_offsets:
        await wait_until(lambda: "reset --subscriber thank" in missing_initial_offsets.log(), LIMIT_SECONDS, "it names the command")
        await missing_initial_offsets.terminate()
    reset = await orders.run("reset", "--subscriber", "thank", "--at", "earliest", "--yes")
    with orders.worker("--only", "thank") as with_initial_offsets:
        lines = await orders.lines(1)
        await with_initial_offsets.terminate()

    assert (0, ["thank"]) == (reset.code, [line.split()[0] for line in lines]), reset.text


@pytest.mark.apache
async def test_topics_create_sets_the_initial_offsets_of_an_at_most_once_subscriber_in_new_partitions(
    orders: Orders, redis_client: redis.asyncio.Redis
) -> None:
    orders.declare(CATALOGUE.replace(THANK, 'idempotent="no", description="Thanks'))
    await orders.run("topics", "create")
    with orders.worker("--only", "thank") as before:
        await orders.pay("o1")
        await orders.lines(1)
        await before.terminate()
    async with admin_of(orders.site.bootstrap) as admin:
        await admin.create_partitions({orders.topic("paid"): NewPartitions(6)})
    await produce(orders.site.bootstrap, orders.topic("paid"), [(b"o2", b'{"order_id": "o2"}')], partition=5)
    with orders.worker("--only", "thank") as missing_initial_offsets:
        code = await missing_initial_offsets.wait_exit(LIMIT_SECONDS)
    state = f"{{{orders.site.names.app_id}/thank/{orders.topic('paid')}/5}}:v1:meta"
    await redis_client.hset(state, "token", "somebody")
    rejected = await orders.run("topics", "create")
    await redis_client.delete(state)
    first, second = [await orders.run("topics", "create") for _ in range(2)]
    with orders.worker("--only", "thank") as after:
        lines = await orders.lines(2)
        await after.terminate()

    assert (1, True) == (code, "has no commit in 2 of 10 partitions: streams-app topics create" in missing_initial_offsets.log())
    names = [f"{orders.topic('paid')}-{number}" for number in (4, 5)]
    assert 1 == rejected.code
    assert f"subscriber 'thank' has no commit in {', '.join(names)}, which it has read before: streams-app reset" in rejected.err
    line_of_new_partitions = f"placed   subscriber thank in 2 new partitions, with their first record: {', '.join(names)}"
    assert [(0, 1), (0, 0)] == [(ran.code, ran.out.splitlines().count(line_of_new_partitions)) for ran in (first, second)]
    assert ["thank o1", "thank o2"] == [" ".join(line.split()[:2]) for line in lines]
