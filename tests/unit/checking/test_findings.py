"""All findings of `check` together, with servers that cannot be used."""

from __future__ import annotations

import asyncio

from streams_app.checking import findings
from streams_app.clock import SystemClock
from streams_app.settings import Settings


async def test_kafka_and_redis_are_queried_at_the_same_time() -> None:
    kafka_queried, redis_queried = asyncio.Event(), asyncio.Event()

    async def kafka(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kafka_queried.set()
        await redis_queried.wait()
        writer.close()

    async def redis(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_queried.set()
        await kafka_queried.wait()
        writer.close()

    async with await asyncio.start_server(kafka, "127.0.0.1") as broker, await asyncio.start_server(redis, "127.0.0.1") as store:
        ports = [server.sockets[0].getsockname()[1] for server in (broker, store)]
        settings = Settings.model_validate({
            "app_id": "a", "kafka": {"bootstrap_servers": f"127.0.0.1:{ports[0]}"}, "redis": {"url": f"redis://127.0.0.1:{ports[1]}/0"},
            "events": {"catalogue": "no_such_module:catalogue"},
        })  # fmt: skip
        away = [finding.text async for finding in findings(settings, SystemClock()) if finding.is_away]

    assert ["cannot reach Kafka", "cannot reach Redis"] == [text.partition(" at ")[0] for text in away]
    assert [] == [text for text in away if "no answer" in text or "does not answer" in text]
