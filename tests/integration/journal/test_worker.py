"""Journals filled by real worker processes, whatever happens to them, to Redis and to the source."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from typing import Any

import pytest
import redis.asyncio

from tests.helpers.cli.commands import run
from tests.helpers.journal.journaled import NAME, Journaled
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import Site, metric, metrics_of

pytestmark = pytest.mark.timeout(300)

DAY_MS = 86_400_000


@pytest.fixture
def journaled(site: Site) -> Journaled:
    return Journaled(site)


async def test_events_of_all_partitions_are_filed_once_with_their_times(journaled: Journaled) -> None:
    config = journaled.config()
    await journaled.topics(partitions=2)
    at_ms = int(time.time() * 1000) - 60_000
    with journaled.site.worker(config) as worker:
        await journaled.put(range(20), timestamp_ms=at_ms)
        await journaled.put(range(20, 30), "b", timestamp_ms=at_ms)
        await journaled.has(range(20), partitions=2)
        await journaled.has(range(20, 30), "b", partitions=2)
        times = {row.time_ms for partition in range(2) for row in (await journaled.rows(partition=partition))[0]}
        await wait_until(lambda: 30 == metric(worker, "streams_app_journal_entries_total"), 60, "all are counted")

    assert {at_ms} == times


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_next_worker_resumes_after_an_interruption(journaled: Journaled, how: signal.Signals) -> None:
    config = journaled.config()
    await journaled.topics(partitions=2)
    claim = rf"claimed journal={NAME} source=\S+-[01] floor=0 fence=-?\d+ state="
    with journaled.site.worker(config) as first:
        await wait_until(lambda: 2 == len(re.findall(claim, first.log())), 60, "both partitions are claimed")
        await journaled.put(range(2_000))
        await journaled.filed(1)
        os.kill(first.pid, how)
        await journaled.put(range(2_000, 3_000))
        with journaled.site.worker(config) as second:
            await journaled.has(range(3_000), partitions=2)
            await wait_until(
                lambda: 2 == len(re.findall(f"{claim}kept", second.log())), 60, "both partitions are claimed with their state"
            )
            if how == signal.SIGSTOP:
                os.kill(first.pid, signal.SIGCONT)
            await journaled.put(range(3_000, 3_100))
            await journaled.has(range(3_100), partitions=2)


async def test_wiped_redis_is_refiled_below_the_commit(journaled: Journaled, redis_client: redis.asyncio.Redis) -> None:
    config = journaled.config()
    await journaled.topics(partitions=1)
    with journaled.site.worker(config):
        await journaled.put(range(50))
        await journaled.has(range(50))
        before, _ = await journaled.rows()
        for key in [key async for key in redis_client.scan_iter(f"{{{journaled.site.names.app_id}/*")]:
            await redis_client.delete(key)
        await journaled.has(range(50))
        after, _ = await journaled.rows()

    assert before == after


async def test_rolled_back_redis_is_detected_while_idle(journaled: Journaled, redis_client: redis.asyncio.Redis) -> None:
    config = journaled.config()
    await journaled.topics(partitions=1)
    with journaled.site.worker(config):
        await journaled.put(range(10))
        await journaled.has(range(10))
        images = {
            key: await redis_client.dump(key) or b""
            for key in [key async for key in redis_client.scan_iter(f"{{{journaled.site.names.app_id}/*")]
        }
        await journaled.put(range(10, 20))
        await journaled.has(range(20))
        for key, image in images.items():
            await redis_client.restore(key, 0, image, replace=True)
        await journaled.has(range(20))


@pytest.mark.parametrize(
    ("options", "done"),
    [
        ({"compress_after": "86410s"}, ["packed", "raw"]),
        ({"keep": "86410s", "compress_rate": 0}, ["raw"]),
    ],
    ids=["packed", "removed"],
)
async def test_keeper_work_missing_from_redis_is_repeated(
    journaled: Journaled, redis_client: redis.asyncio.Redis, options: dict[str, Any], done: list[str]
) -> None:
    async def forms() -> list[str]:
        return [segment.form for segment in await journaled.segments()]

    async def is_done() -> bool:
        return await forms() == done

    async def is_filed() -> bool:
        return await forms() == ["raw", "raw"]

    config = journaled.config(**options)
    await journaled.topics(partitions=1)
    now_ms = int(time.time() * 1000)
    await journaled.put([1], timestamp_ms=now_ms - DAY_MS)
    await journaled.put([2], timestamp_ms=now_ms)
    pattern = f"{{{journaled.site.names.app_id}/*"
    with journaled.site.worker(config):
        await wait_until(is_filed, 60, "both days are filed")
        images = {key: await redis_client.dump(key) or b"" for key in [key async for key in redis_client.scan_iter(pattern)]}
        await wait_until(is_done, 60, "the keeper has done it")
        # As after a fail-over: the fence and the token are those that there were.
        rollback = redis_client.pipeline(transaction=True)
        rollback.delete(*[key async for key in redis_client.scan_iter(pattern)])
        for key, image in images.items():
            rollback.restore(key, 0, image)
        await rollback.execute()
        await wait_until(is_done, 60, "the keeper has done it once more")


async def test_journal_starts_as_far_back_as_it_keeps_events(journaled: Journaled) -> None:
    config = journaled.config(keep="2d")
    await journaled.topics(partitions=1)
    now_ms = int(time.time() * 1000)
    await journaled.put([1], timestamp_ms=now_ms - 5 * DAY_MS)
    await journaled.put([2], timestamp_ms=now_ms - DAY_MS)
    await journaled.put([3], timestamp_ms=now_ms)
    with journaled.site.worker(config):
        await journaled.has([2, 3])
        segments = await journaled.segments()

    # A day each: what was filed late stands in the day in which it happened.
    assert 2 == len({segment.day for segment in segments})
    assert [segment.day for segment in segments] == sorted(segment.day for segment in segments)


async def test_days_follow_record_times_and_implausible_times_change_nothing(journaled: Journaled) -> None:
    config = journaled.config(keep="30d")
    await journaled.topics(partitions=1, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    now_ms = int(time.time() * 1000)
    for number, at_ms in enumerate((now_ms - 3 * DAY_MS, 1, 4_102_444_800_000, now_ms - 2 * DAY_MS)):
        await journaled.put([number], timestamp_ms=at_ms)
    with journaled.site.worker(config):
        await journaled.has(range(4))
        segments = await journaled.segments()

    assert time.strftime("%Y-%m-%d", time.gmtime(now_ms / 1000)) >= segments[-1].day
    assert [segment.day for segment in segments] == sorted(segment.day for segment in segments)


async def test_invalid_events_are_filed_without_a_key_and_oversized_ones_with_their_size(journaled: Journaled) -> None:
    config = journaled.config(more="[limits]\nvalue_bytes = 1_000\nkey_bytes = 20\n")
    await journaled.topics(partitions=1)
    long = b'{"account_id": "' + b"k" * 21 + b'"}'
    unkeyed = [b"{", b"[1]", b"{}", None, b'{"account_id": {}}', long]
    large = b'{"account_id": "a", "x": "' + b"y" * 2_000 + b'"}'
    keyed = [b'{"account_id": 1}', b'{"account_id": "1"}', b'{"account_id": "{\\u0000"}', large]
    with journaled.site.worker(config) as worker:
        await journaled.site.send("events", [(b"k", value) for value in [*unkeyed, *keyed]])
        await journaled.put([7], "last")
        await journaled.has([7], "last")
        rows, _ = await journaled.rows(b"")
        found = {key: (await journaled.rows(key))[0] for key in (b"j1", b"s1", b"s{\0", b"sa")}
        page = metrics_of(worker)

    assert unkeyed == [row.value for row in rows]
    assert [1, 1, 1, 1] == [len(of_key) for of_key in found.values()]
    assert b'{"too_large":%d}' % len(large) == found[b"sa"][0].value
    for reason, count in (("not-json", 1), ("not-an-object", 1), ("no-key", 3), ("key-too-large", 1)):
        assert f'streams_app_journal_unkeyed_total{{journal="{NAME}",reason="{reason}"}} {count}.0' in page


async def test_any_bytes_are_filed_under_the_key_of_their_record(journaled: Journaled) -> None:
    config = journaled.config(key="@key")
    await journaled.topics(partitions=1)
    sent = [(b"\xff\x00{", b"\x80"), (b"\xff\x00{", None), (None, b"x"), (b"", b"y")]
    with journaled.site.worker(config):
        await journaled.site.send("events", sent)
        await journaled.filed(4)
        rows, _ = await journaled.rows(b"\xff\x00{")
        unkeyed, _ = await journaled.rows(b"")

    assert ([b"\x80", None], [b"x", b"y"]) == ([row.value for row in rows], [row.value for row in unkeyed])


async def test_large_day_is_split_into_segments_whose_oldest_are_evicted_when_the_share_is_full(journaled: Journaled) -> None:
    config = journaled.config(max_bytes=1_000_000, key="@key", compress_rate=0)
    await journaled.topics(partitions=1)
    with journaled.site.worker(config) as worker:
        for number in range(12):
            await journaled.site.send("events", [(b"k", os.urandom(100_000)) for _ in range(2)])
            await journaled.filed_up_to(2 * number + 1)
        await wait_until(
            lambda: f'dropped_segments_total{{cause="size",journal="{NAME}"}} 0.0' not in metrics_of(worker),
            60,
            "some were dropped",
        )
        segments = await journaled.segments()

    assert segments[0].first > 0
    assert sum(segment.stored_bytes for segment in segments) <= 1_000_000 + 225_000  # and a segment
    assert [one.part for one in segments] == list(range(segments[0].part, segments[0].part + len(segments)))


async def test_reset_journal_is_refiled_by_running_workers(journaled: Journaled) -> None:
    config = journaled.config()
    await journaled.topics(partitions=2)
    with journaled.site.worker(config):
        await journaled.put(range(20))
        await journaled.has(range(20), partitions=2)
        unknown = await asyncio.to_thread(run, "reset", "--journal", "a*", "--config", str(config))
        planned = await asyncio.to_thread(run, "reset", "--journal", NAME, "--config", str(config))
        done = await asyncio.to_thread(run, "reset", "--journal", NAME, "--yes", "--config", str(config))
        await journaled.has(range(20), partitions=2)

    assert (1, 0, 0) == (unknown.code, planned.code, done.code)
    assert "'a*' is not the name of a journal" in unknown.err
    assert "nothing was changed; --yes does it" in planned.out
    assert "removed" in done.out


async def test_worker_without_its_source_does_not_start_and_topics_create_creates_it(journaled: Journaled) -> None:
    config = journaled.config()
    with journaled.site.worker(config) as worker:
        code = await worker.wait_exit(60)
    made = await asyncio.to_thread(run, "topics", "create", "--config", str(config))

    assert 1 == code
    assert f"topic '{journaled.source}' (source of {NAME}) does not exist" in worker.log()
    assert f"created  {journaled.source}" in made.out


async def test_closed_segments_are_compressed_without_changing_what_is_read(journaled: Journaled) -> None:
    config = journaled.config(max_bytes=4_000_000)
    await journaled.topics(partitions=1)
    with journaled.site.worker(config) as worker:
        for begin in range(0, 40_000, 10_000):
            await journaled.put(range(begin, begin + 10_000), f"a{begin}")
        await journaled.filed(40_000)
        await wait_until(lambda: 'journal_segments{form="packed",journal="accounts"} 0.0' not in metrics_of(worker), 60, "some are")

        async def packed() -> bool:
            return {"packed"} == {segment.form for segment in (await journaled.segments())[:-1]}

        await wait_until(packed, 60, "all but the open one are compressed")
        for begin in range(0, 40_000, 10_000):
            await journaled.has(range(begin, begin + 10_000), f"a{begin}")
        segments = await journaled.segments()

    assert len(segments) > 2
    assert all(5 * segment.stored_bytes < segment.received_bytes for segment in segments[:-1])
