"""Untrusted bytes: received data never selects its decoder, and no record that Kafka accepts stops a partition."""

from __future__ import annotations

import ast
import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

import streams_app
from streams_app.settings import Settings
from streams_app.worker.faust_app import create_app
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import OddName, produce
from tests.helpers.worker.site import LIMIT_SECONDS, Stage

READING_SECONDS = 12

UNSAFE = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml"}


def test_modules_import_no_decoder_that_can_run_code() -> None:
    modules = sorted(Path(streams_app.__file__).parent.rglob("*.py"))
    imported = set()
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported |= {(name.partition(".")[0], path.name) for name in names}

    assert len(modules) > 40
    assert ("orjson", "codec.py") in imported
    assert [] == [found for found in imported if found[0] in UNSAFE]


def test_faust_receives_bytes_and_decodes_nothing() -> None:
    fold = {"name": "f", "source": "s", "group_key": "g", "changed": "c", "quiet_period": "1s"}
    app = create_app(Settings.model_validate({"app_id": "a", "folds": [fold]}))
    topics = [channel for agent in app.agents.values() for channel in [agent.channel]]

    assert [("raw", "raw")] == [(topic.key_serializer, topic.value_serializer) for topic in topics]


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


async def test_header_or_field_never_selects_a_codec(stage: Stage, tmp_path: Path) -> None:
    made = tmp_path / "made by pickle"
    bomb = pickle.dumps(Bomb(made))
    names = ["content-type", "codec", "serializer", "value_serializer", "key_serializer", "__faust", "faust", "type"]
    headers = [(name, value) for name in names for value in (b"pickle", b"application/x-python-serialize")]
    blessed = {"ns": "faust.models.record.Record", "__faust": {"ns": "pathlib.Path"}}
    with stage.worker() as worker:
        await worker.wait_ready()
        await produce(stage.bootstrap, stage.source, [(bomb, bomb)], headers=headers)
        items = [event("a", "x", __faust=blessed), event("b", "y")]
        stage.sent |= {"x": b"a", "y": b"b"}
        await produce(stage.bootstrap, stage.source, items, headers=headers)
        dead_letters = await stage.dead_letters(1)
        outcome = await stage.outcome()
        code = await worker.terminate()

    assert not made.exists()
    assert [(bomb, bomb)] == [(dead_letter.key, dead_letter.value) for dead_letter in dead_letters]
    assert b"not-json" == dict(dead_letters[0].headers)["reason"]
    assert [] == outcome.faults(stage.sent)
    assert 0 == code
    pickle.loads(bomb)  # unpickling would have created the file
    assert made.exists()


# Records that other clients send, and aiokafka does not


async def send_as_it_is(stage: Stage, partition: int, **record: Any) -> None:
    """Send one record that the producer's own checks would reject."""
    producer = AIOKafkaProducer(bootstrap_servers=stage.bootstrap)
    await producer.start()
    try:
        batch = producer.create_batch()
        batch._builder = _DefaultRecordBatchBuilderPy(2, 0, 0, -1, -1, -1, 100_000)
        assert batch.append(timestamp=None, **record)
        batch.close()
        await (await producer.send_batch(batch, stage.source, partition=partition))
    finally:
        await producer.stop()


async def dead_letters_of(stage: Stage, send: Any, count: int) -> list[Any]:
    """Send good events around those that ``send`` sends to partition 0; check that they are folded; return the dead letters."""
    with stage.worker() as worker:
        await worker.wait_ready()
        await stage.send(24)
        await send()
        for partition in range(4):
            await stage.send(5, partition=partition)
        reading, ending = asyncio.create_task(stage.outcome()), asyncio.create_task(worker.wait_exit(LIMIT_SECONDS))
        await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED, timeout=READING_SECONDS)
        is_done = reading.done()
        reading.cancel()
        ending.cancel()
        await asyncio.gather(reading, ending, return_exceptions=True)
        assert is_done, f"the worker does not go on; its log:\n{worker.log()[-2_000:]}"
        outcome = reading.result()
        found = await stage.dead_letters(count) if count else []
        assert worker.exit_code is None
    assert [] == outcome.faults(stage.sent)
    return found


@pytest.mark.long
async def test_tombstone_without_a_key_is_dead_lettered(stage: Stage) -> None:
    dead_letters = await dead_letters_of(stage, lambda: send_as_it_is(stage, 0, key=None, value=None), 1)

    assert [(None, b"tombstone")] == [(dead_letter.key, dict(dead_letter.headers)["reason"]) for dead_letter in dead_letters]


async def test_header_name_that_is_not_utf_8_does_not_stop_the_partition(stage: Stage) -> None:
    key, value = event("odd", "odd")
    stage.sent["odd"] = key
    await dead_letters_of(stage, lambda: send_as_it_is(stage, 0, key=key, value=value, headers=[(OddName("x"), b"v")]), 0)


LARGE: dict[str, dict[str, Any]] = {
    "as large as the broker takes": {"size": 1_048_430},
    "compressed": {"size": 3_000_000, "compression_type": "gzip"},
    "compressed, beyond what is produced": {"size": 9_000_000, "compression_type": "gzip"},
}


@pytest.mark.apache
@pytest.mark.parametrize("name", LARGE)
async def test_rejected_event_too_large_to_be_stored_does_not_stop_the_partition(stage: Stage, name: str) -> None:
    options = dict(LARGE[name])
    value = b"x" * options.pop("size")

    async def send() -> None:
        await produce(stage.bootstrap, stage.source, [(b"k", value)], partition=0, max_request_size=20_000_000, **options)

    dead_letters = await dead_letters_of(stage, send, 1)

    assert [b"k"] == [dead_letter.key for dead_letter in dead_letters]
