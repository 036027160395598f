"""All findings of `check` together, with servers that cannot be used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streams_app.checking import findings
from streams_app.clock import SystemClock
from streams_app.embedded.ports import free_port
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


async def test_module_of_a_wrong_catalogue_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_events.py").write_text(
        "from pathlib import Path\nwith Path('imports').open('a') as file: file.write('.')\nraise ValueError('no database')\n",
        "utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = Settings.model_validate({
        "app_id": "a", "kafka": {"bootstrap_servers": f"127.0.0.1:{free_port()}"},
        "redis": {"url": f"redis://127.0.0.1:{free_port()}/0"}, "events": {"catalogue": "failing_events:catalogue"},
    })  # fmt: skip
    errors = [
        finding.text async for finding in findings(settings, SystemClock()) if finding.advice.startswith("correct the catalogue")
    ]

    assert ["importing 'failing_events' raised ValueError: no database"] == [
        text.partition(": ")[2].partition(" (")[0] for text in errors
    ]
    assert "." == (tmp_path / "imports").read_text("utf-8")
