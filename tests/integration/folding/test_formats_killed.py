"""Folds of each format in real workers that are killed with -9: every record equals a recomputation from the events."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.helpers.kafka.topics import produce
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, DyingWorker, Site

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

KILLS = ("after-fold:2", "after-seal:3", "after-produce:1", "after-ack:1")
EACH = 80
"""The number of events that are produced for each worker."""

Item = tuple[bytes, bytes]
Taken = tuple[Any, dict[str, Any]]
"""What a fold should read from an event: the group, and the changed names with their last values."""


class Format(NamedTuple):
    """A format of events.

    Attributes:
        group: Name of the group field in records.
        options: Settings of the fold.
        items: Returns an endless sequence of events.
        taken: Reads one value by brute force, without the product.
    """

    group: str
    options: dict[str, Any]
    items: Callable[[random.Random], Iterator[Item]]
    taken: Callable[[bytes], Taken]


def changes_of_a_table(chosen: random.Random) -> Iterator[Item]:
    """Yield changes of a table of seven rows as Debezium reports them, with and without the schema of Kafka Connect."""
    rows: dict[int, dict[str, Any]] = {}
    while True:
        key = chosen.randrange(7)
        before, op = rows.get(key), "u"
        after: dict[str, Any] | None = {"id": key, **{f"c{at}": chosen.randrange(3) for at in range(6)}}
        if before is None:
            op = chosen.choice("cr")
        elif chosen.random() < 0.2:
            op, after = "d", None
            del rows[key]
        if after is not None:
            rows[key] = after
        change: Any = {"before": before, "after": after, "source": {"table": "orders"}, "op": op, "ts_ms": 1, "transaction": None}
        if chosen.random() < 0.5:
            change = {"schema": {"type": "struct"}, "payload": change}
        yield b'{"id":%d}' % key, json.dumps(change).encode()


def columns_that_differ(value: bytes) -> Taken:
    change = json.loads(value)
    change = change.get("payload", change)
    before, after = change["before"] or {}, change["after"] or {}
    row = after or before
    names = [name for name in row if change["op"] != "u" or before[name] != after[name]]
    return row["id"], {name: after.get(name) for name in names}


def cloud_events(chosen: random.Random) -> Iterator[Item]:
    """Yield CloudEvents in structured mode."""
    number = 0
    while True:
        number += 1
        customer = f"c{chosen.randrange(7)}"
        data = {"customer": {"id": customer}, "changes": {f"n{chosen.randrange(9)}": number}}
        attributes = {"specversion": "1.0", "id": f"e{number}", "source": "/shop", "type": "customer.changed"}
        yield customer.encode(), json.dumps({**attributes, "data": data}).encode()


def data_of_cloud_event(value: bytes) -> Taken:
    data = json.loads(value)["data"]
    return data["customer"]["id"], data["changes"]


def dotted_events(chosen: random.Random) -> Iterator[Item]:
    """Yield plain JSON; a field named like the dotted path takes precedence over a nested field."""
    number = 0
    while True:
        number += 1
        nested, whole = (f"c{chosen.randrange(7)}" for _ in range(2))
        event: dict[str, Any] = {"customer": {"id": nested}, "data": {"changes": {f"n{chosen.randrange(9)}": number}}}
        if chosen.random() < 0.3:
            event["customer.id"] = whole
        yield event.get("customer.id", nested).encode(), json.dumps(event).encode()


def dotted_fields(value: bytes) -> Taken:
    event = json.loads(value)
    return event.get("customer.id", event["customer"]["id"]), event["data"]["changes"]


FORMATS = {
    "debezium": Format(
        "id", {"format": "debezium", "group_key": "id", "changed": "@columns", "changed_as": "found"}, changes_of_a_table,
        columns_that_differ,
    ),
    "cloudevents": Format(
        "customer.id", {"format": "cloudevents", "group_key": "customer.id", "changed": "changes"}, cloud_events,
        data_of_cloud_event,
    ),
    "dotted": Format("customer.id", {"group_key": "customer.id", "changed": "data.changes"}, dotted_events, dotted_fields),
}  # fmt: skip


async def until_killed(worker: DyingWorker, point: str) -> None:
    await wait_until(lambda: worker.exit_code is not None, LIMIT_SECONDS, f"it dies {point}")

    assert -9 == worker.exit_code


@pytest.mark.parametrize("name", FORMATS)
async def test_records_equal_a_recomputation_after_worker_kills(site: Site, name: str) -> None:
    of = FORMATS[name]
    await site.topics("events", "folded", "events.dead")
    config = site.config(site.fold("folded", "events", keep="last", quiet_period="500ms", **of.options))
    items, log = of.items(random.Random(name)), dict[tuple[int, int], bytes]()

    async def send() -> None:
        some = [next(items) for _ in range(EACH)]
        sent = await produce(site.bootstrap, site.names.topic("events"), some)
        log.update(((at.partition, at.offset), value) for at, (_, value) in zip(sent, some, strict=True))

    for point in KILLS:
        with DyingWorker(config, site.folder, point) as worker:
            await send()
            await until_killed(worker, point)
    with site.worker(config) as last:
        await send()
        records = await site.records("folded", len(log))
        code = await last.terminate()

    seen: dict[tuple[int, int], str] = {}
    for record in {dict(record.headers)["fold-id"]: record for record in records}.values():
        value = json.loads(record.value or b"")
        fold_info, group = value.pop("fold"), value.pop(of.group)
        partition, offsets = fold_info["id"].split(":")[-2:]
        first, last_offset = map(int, offsets.split("-"))
        covered = [at for at in log if at[0] == int(partition) and first <= at[1] <= last_offset and of.taken(log[at])[0] == group]
        expected: dict[str, Any] = {}
        for at in sorted(covered):
            expected |= of.taken(log[at])[1]

        assert [expected] == list(value.values())
        assert len(covered) == fold_info["events"]
        assert not seen.keys() & set(covered), "an event is in two records"
        seen |= dict.fromkeys(covered, fold_info["id"])
    assert (0, set(log)) == (code, set(seen))
    assert len(log) == EACH * (len(KILLS) + 1)
