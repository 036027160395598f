"""``streams-app forget``: what the receipt says about topics, and tombstones that no component stores or rejects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord
from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.errors import ConfigurationError
from streams_app.events.headers import ERASURE
from streams_app.kafka.partitioner import partitions_of
from streams_app.operations.forget.topics import WantedTombstones
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.kafka.topics import create_topics, produce, read_topic
from tests.helpers.operations.forgetting import PERSON, Application

COMPACTED = {"cleanup.policy": "compact"}
PARTITIONS = 3


class Compacted:
    """An application whose topics are compacted, except its dead-letter topic."""

    def __init__(self, application: Application) -> None:
        self.application = application
        fold = application.settings.folds[0]
        self.source, self.output, self.dead = fold.source, fold.output, fold.dead_letters
        self._bootstrap = application.settings.kafka.bootstrap_servers

    async def produced(self, topic: str, *keys: bytes) -> None:
        await produce(self._bootstrap, topic, [(key, b"{}") for key in keys])

    async def tombstones(self, topic: str, count: int) -> Sequence[ConsumerRecord[Any, Any]]:
        """Read a topic that has ``count`` records; return the tombstones."""
        records = await read_topic(self._bootstrap, topic, until=lambda found: len(found) >= count, timeout_seconds=20)
        return [record for record in records if record.value is None]


@pytest.fixture
async def compacted(kafka: KafkaServer, redis_server: RedisServer, redis_client: Redis, names: Names) -> Compacted:
    source, output, dead = (names.topic(suffix) for suffix in ("events", "folded", "dead"))
    await create_topics(kafka.bootstrap_servers, [source, output], PARTITIONS, COMPACTED)
    await create_topics(kafka.bootstrap_servers, [dead], 1, {"cleanup.policy": "delete", "retention.ms": "86400000"})
    fold = {
        "name": "f", "source": source, "output": output, "dead_letters": dead, "group_key": "g", "changed": "m",
        "quiet_period": "1s",
    }  # fmt: skip
    given = {
        "app_id": names.app_id, "redis": {"url": redis_server.url}, "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
        "folds": [fold],
    }  # fmt: skip
    return Compacted(Application(redis_client, given))


async def test_tombstone_goes_to_the_partition_of_the_key_in_compacted_topics_of_the_application(
    compacted: Compacted,
) -> None:
    for topic in (compacted.source, compacted.output, compacted.dead):
        await compacted.produced(topic, b"anna")
    wanted = WantedTombstones(is_for_own=True)
    plan = await compacted.application.plan(tombstones=wanted)
    receipts = [await compacted.application.forget(tombstones=wanted) for _ in range(2)]
    found = await compacted.tombstones(compacted.output, 3)
    person = PERSON.encode()

    assert [{"where": f"topic {compacted.output} (output)", "what": "tombstones", "number": 1}] == plan.counts(is_written=True)
    assert plan.counts(is_written=True) == receipts[0].counts(is_written=True) == receipts[1].counts(is_written=True)
    assert [(person, partitions_of([person], PARTITIONS)[0], ((ERASURE, b"1"),))] * 2 == [
        (record.key, record.partition, tuple(record.headers)) for record in found
    ]
    assert [] == await compacted.tombstones(compacted.source, 1) == await compacted.tombstones(compacted.dead, 1)


async def test_source_gets_a_tombstone_in_each_partition_if_it_is_named(compacted: Compacted) -> None:
    await compacted.produced(compacted.source, b"anna")
    await compacted.application.forget(tombstones=WantedTombstones(topics=[compacted.source]))
    found = await compacted.tombstones(compacted.source, 1 + PARTITIONS)

    assert {(PERSON.encode(), number) for number in range(PARTITIONS)} == {(record.key, record.partition) for record in found}


async def test_topic_that_cannot_have_a_tombstone_is_reported_before_anything_is_removed(compacted: Compacted) -> None:
    await compacted.application.open_groups(PERSON)
    with pytest.raises(ConfigurationError) as caught:
        await compacted.application.forget(tombstones=WantedTombstones(topics=[compacted.dead, "accounts"]))

    assert [True, True] == [
        words in str(caught.value) for words in ("is not compacted", "'accounts' is no topic of this application")
    ]
    assert await compacted.application.traces()


async def test_no_tombstone_is_written_if_another_group_has_the_record_key(compacted: Compacted) -> None:
    await compacted.produced(compacted.output, b"17")
    receipt = await compacted.application.forget('"17"', tombstones=WantedTombstones(is_for_own=True))

    assert [] == await compacted.tombstones(compacted.output, 1) == receipt.counts(is_written=True)
    assert any("the group 17 has the same record key" in kept.why for kept in receipt.kept)


async def test_receipt_counts_retention_from_the_newest_record_and_omits_empty_topics(compacted: Compacted) -> None:
    before_ms = SystemClock().now_ms()
    await compacted.produced(compacted.dead, b"anna")
    (kept,) = [one for one in (await compacted.application.forget("anna")).kept if one.where.startswith("topic ")]
    after_ms = SystemClock().now_ms()

    assert (f"topic {compacted.dead} (dead letters)", True) == (
        kept.where, before_ms <= (kept.until_ms or 0) - 86_400_000 <= after_ms
    )  # fmt: skip


async def test_dead_letters_of_the_key_are_counted_and_tombstones_are_not(compacted: Compacted) -> None:
    person = PERSON.encode()
    bootstrap = compacted.application.settings.kafka.bootstrap_servers
    others = [(b"x", b'{"g":"%s"}' % person), (b"x", b'{"g":"%s0"}' % person), (person, None)]
    await produce(bootstrap, compacted.dead, [(person, b"{}"), (person, None), *others[:2]])
    await produce(bootstrap, compacted.dead, others[2:], headers=[(ERASURE, b"1")])
    where = f"topic {compacted.dead} (dead letters)"
    plan, receipt = await compacted.application.plan(), await compacted.application.forget()
    skipped = await compacted.application.plan(counts_dead_letters=False)

    assert [[(2, 1)], [(2, 1)], [(None, None)]] == [
        [(one.records, one.mentions) for one in found.kept if one.where == where] for found in (plan, receipt, skipped)
    ]
