"""More workers than partitions: workers without a partition are ready, and take over when others end."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import produce
from tests.helpers.worker.site import Site

pytestmark = pytest.mark.timeout(300)

WORKERS = 3


async def test_workers_without_a_partition_are_ready_and_take_over(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    config = site.config(site.fold("folded", "events"))
    with ExitStack() as stack:
        workers = [stack.enter_context(site.worker(config)) for _ in range(WORKERS)]
        for number, worker in enumerate(workers):
            # One after the other ends, and the worker that gets the partition then folds.
            for other in workers[number:]:
                await other.wait_ready()
            await produce(site.bootstrap, site.names.topic("events"), [event(f"a{number}", f"n{number}")])
            await site.records("folded", number + 1)
            assert 0 == await worker.terminate()
