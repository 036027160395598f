"""Where folds begin, and its commit metadata: ``start = "latest"``, partitions added later, many folds."""

from __future__ import annotations

import pytest
from aiokafka.admin import NewPartitions

from tests.helpers.folding.checker import event, outcome_of
from tests.helpers.kafka.topics import admin_of, read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import FREQUENT_METADATA, LIMIT_SECONDS, Site
from tests.helpers.worker.workers import WorkerProcess

pytestmark = [pytest.mark.apache, pytest.mark.timeout(200)]


async def send(site: Site, partition: int, *names: str) -> None:
    await site.send("events", [event(f"p{partition}", name) for name in names], partition=partition)


async def folded(site: Site, last: set[str]) -> set[str]:
    """Return the names in the output topic, once ``last`` are among them."""
    found = await read_topic(
        site.bootstrap,
        site.names.topic("folded"),
        until=lambda records: last <= set(outcome_of(records).ids_of),
        timeout_seconds=LIMIT_SECONDS,
    )
    return set(outcome_of(found).ids_of)


async def test_start_latest_applies_to_the_first_start_and_an_added_partition_starts_at_its_beginning(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=2)
    for partition in range(2):
        await send(site, partition, *(f"before{partition}-{number}" for number in range(10)))
    later: set[str] = set()
    config = site.config(site.fold("folded", "events", start="latest"))
    with WorkerProcess(config, site.folder, FREQUENT_METADATA) as worker:
        await worker.wait_ready()
        # Added before any folded position is committed, and filled before the worker knows of them.
        async with admin_of(site.bootstrap) as admin:
            await admin.create_partitions({site.names.topic("events"): NewPartitions(total_count=4)})
        for partition in (2, 3, 0):
            later |= (names := {f"later{partition}-{number}" for number in range(15)})
            await send(site, partition, *names)
        found = await folded(site, later)
        assert 0 == await worker.terminate()
    with site.worker(config) as worker:
        await worker.wait_ready()
        await send(site, 1, "last")
        after_restart = await folded(site, {"last"})
        assert 0 == await worker.terminate()

    assert (45, set()) == (len(later), later ^ found)
    assert later | {"last"} == after_restart


async def test_offsets_of_sixty_five_folds_with_long_names_are_committed(site: Site) -> None:
    """Written in full they would exceed the commit metadata that a broker stores."""
    names = [f"metrics-by-region-and-product-for-the-customer-dashboard-{number:06d}" for number in range(65)]
    await site.topics("events", "events.dead", *names, partitions=1)
    config = site.config("".join(site.fold(name, "events", quiet_period="1h") for name in names))
    with site.worker(config) as worker:
        await worker.wait_ready()
        await send(site, 0, "one")
        async with admin_of(site.bootstrap) as admin:

            async def committed_metadata() -> str:
                committed = await admin.list_consumer_group_offsets(site.names.app_id)
                return next((position.metadata for tp, position in committed.items() if tp.topic == site.names.topic("events")), "")

            metadata = await wait_until(committed_metadata, LIMIT_SECONDS, "the positions are committed")
        assert 0 == await worker.terminate()

    assert (True, 65) == (len(metadata) <= 4_096, metadata.count("=0"))
