"""Pages of the console over HTTP: equal to the commands, with bad input, attacking keys, and servers that are away."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiokafka.errors import KafkaTimeoutError
from redis.asyncio import Redis

from streams_app.console import server
from streams_app.console.pages.problems import link_of_remark
from streams_app.console.pages.registry import PAGES
from streams_app.embedded.ports import free_port
from streams_app.folding.core.event import FoldEvent
from streams_app.requirements.declarations import declarations_of
from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD, Place, run
from tests.helpers.console.consoles import running_console, with_console
from tests.helpers.console.shown import CATALOGUE
from tests.helpers.folding.scripts import open_in
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.waiting import wait_until

FOLD_PATH = f"/folds/{FOLD}"
ATTACKS = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\u202eabc", "a\0b", "a/../b?c#d&e=f", "漢字", "k" * 500]


async def opened(app: Place, client: Redis, keys: list[str]) -> None:
    """Open a group for each key in partition 0, as a worker would, and create the topics."""
    await create_topics(app.bootstrap, app.topics, partitions=1)
    events = [FoldEvent(number, 1_000 + number, b"s" + key.encode(), {"likes": 1}) for number, key in enumerate(keys)]
    await open_in(app.names.app_id, FOLD, app.topics[0], client, 0, events)


def command(app: Place, *words: str) -> Any:
    ran = run(*words, "--json", "--config", app.config())
    assert 0 == ran.code, ran.text
    return [json.loads(line) for line in ran.out.splitlines()]


@pytest.mark.parametrize("sort", ["quiet", "oldest", "events", "largest"])
async def test_open_groups_equal_those_of_the_command(app: Place, settings: Settings, redis_client: Redis, sort: str) -> None:
    await opened(app, redis_client, [f"k{number}" for number in range(70)])
    listed = await asyncio.to_thread(command, app, "groups", "list", "--sort", sort, "--limit", "100")
    async with running_console(settings) as console:
        pages = [await console.json(f"{FOLD_PATH}.json?sort={sort}&page={page}") for page in (1, 2)]

    fields = ("partition", "events", "names", "bytes", "first_event_ms", "last_event_ms", "quiet_in_ms", "hold_in_ms")
    assert [{field: row[field] for field in fields} | {"group": row["key"]} for row in listed] == [
        {field: row[field] for field in (*fields, "group")} for page in pages for row in page["groups"]["rows"]
    ]
    assert [(70, 2, 50), (70, 2, 20)] == [
        (page["groups"]["total"], page["groups"]["pages"], len(page["groups"]["rows"])) for page in pages
    ]


async def test_explanation_of_a_group_equals_that_of_the_command(app: Place, settings: Settings, redis_client: Redis) -> None:
    await opened(app, redis_client, ["anna"])
    (expected,) = await asyncio.to_thread(command, app, "groups", "explain", "anna")
    async with running_console(settings) as console:
        found = await console.json(f"{FOLD_PATH}/group.json?key=anna")
    for explanation in (expected, found["explanation"]):
        del explanation["at_ms"], explanation["states"][0]["reading"]["clock_behind_ms"]  # the time of the question

    assert expected == found["explanation"]
    assert "anna of fold account-metrics is open" in found["parts"][0]["verdict"]
    assert [1, 0] == [found["parts"][0]["window"]["events"], found["parts"][0]["window"]["partition"]]


@pytest.mark.parametrize("key", ATTACKS, ids=range(len(ATTACKS)))
async def test_key_that_attacks_is_shown_as_text_and_its_page_is_found(
    app: Place, settings: Settings, redis_client: Redis, key: str
) -> None:
    await opened(app, redis_client, [key])
    async with running_console(settings) as console:
        status, listed, _ = await console.get(FOLD_PATH)
        (row,) = (await console.json(f"{FOLD_PATH}.json"))["groups"]["rows"]
        found = await console.get(row["link"])
        page = await console.json(row["link"].replace("/group?", "/group.json?"))

    assert (200, 200, 1) == (status, found[0], len(page["explanation"]["states"]))
    assert key == page["explanation"]["states"][0]["key"]
    for text in (listed, found[1]):
        assert not any(raw in text for raw in ("<script>alert", "<img src=x", "\u202e", "\0"))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/folds/nothing", 404),
        ("/folds/nothing.json", 404),
        ("/folds/%00", 404),
        ("/folds/" + "x" * 3_000, 404),
        ("/static/../server.py", 404),
        ("/static/%2e%2e/server.py", 404),
        ("/static/vendor/README.md", 404),
        (f"{FOLD_PATH}?sort=%3Cscript%3E", 400),
        (f"{FOLD_PATH}?page=0", 400),
        (f"{FOLD_PATH}?page=99999999999", 400),
        (f"{FOLD_PATH}/group", 400),
        (f"{FOLD_PATH}/group?key=" + "k" * 3_000, 400),
        (f"{FOLD_PATH}/group?key=%ff%00", 200),
        (f"{FOLD_PATH}?unknown=%00%ff", 200),
        ("/journals/nothing", 404),
        ("/live/%00", 404),
        ("/read-stores/nothing.json", 404),
        ("/" + "x" * 9_000, 414),
    ],
)
async def test_bad_requests_get_an_answer_that_says_what_is_wrong(settings: Settings, path: str, status: int) -> None:
    async with running_console(settings) as console:
        found, text, headers = await console.get(path)

    assert status == found
    assert "Traceback" not in text and "<script>" not in text.partition("<body>")[2]
    assert "nosniff" == headers["X-Content-Type-Options"]


@pytest.mark.parametrize(("error", "status"), [(KafkaTimeoutError("no answer"), 503), (KeyError("x"), 500)])
async def test_server_that_does_not_answer_is_no_defect_of_the_console(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    monkeypatch.setattr(server.ConsoleServer, "_live", AsyncMock(side_effect=error))
    async with running_console(settings) as console:
        found, text, _ = await console.get("/health/live")

    assert status == found
    assert ("KafkaTimeoutError: no answer" in text) == (status == 503)


async def test_each_page_is_json_by_accept_header_and_described_by_openapi(settings: Settings) -> None:
    async with running_console(settings) as console:
        _, text, headers = await console.get("/", headers={"Accept": "application/json"})
        document = await console.json("/openapi.json")

    assert ("application/json", app_id_of(settings)) == (headers["Content-Type"], json.loads(text)["app_id"])
    assert {page.json_path for page in PAGES} <= set(document["paths"])


def app_id_of(settings: Settings) -> str:
    return settings.app_id


async def test_missing_worker_redis_and_kafka_are_said_in_their_places(settings: Settings) -> None:
    away = Settings.model_validate(
        {
            **dict(settings), "redis": {"url": f"redis://127.0.0.1:{free_port()}/0"},
            "kafka": {"bootstrap_servers": f"127.0.0.1:{free_port()}"}, "http": {"port": free_port()},
        }
    )  # fmt: skip
    async with running_console(away) as console:
        overview = await console.json("/overview.json")
        fold = await console.json(f"{FOLD_PATH}.json")
        group = await console.json(f"{FOLD_PATH}/group.json?key=a")
        pages = [await console.get(path) for path in ("/", FOLD_PATH, f"{FOLD_PATH}/group?key=a")]
        later = await console.json(f"{FOLD_PATH}.json")

    assert ("No worker answers.", "trouble") == (overview["sentence"], overview["state"])
    assert ("missing", True) == (fold["groups"]["type"], "cannot reach Redis" in fold["groups"]["why"])
    assert fold["groups"]["since_ms"] == later["groups"]["since_ms"]
    assert [("the group", True)] == [(one["what"], "Redis" in one["why"]) for one in group["missing"]]
    assert "missing" == group["records"]["type"]
    assert {200} == {status for status, _, _ in pages}
    assert all("cannot be read now" in text for _, text, _ in pages[1:])


async def test_hidden_values_are_nowhere(app: Place, settings: Settings, redis_client: Redis) -> None:
    await opened(app, redis_client, ["secret-account"])
    async with running_console(with_console(settings, hide_values=True)) as console:
        listed = await console.get(FOLD_PATH)
        as_json = await console.get(f"{FOLD_PATH}.json")
        group = await console.get(f"{FOLD_PATH}/group?key=secret-account")
        group_json = await console.get(f"{FOLD_PATH}/group.json?key=secret-account")
        (row,) = json.loads(as_json[1])["groups"]["rows"]

    assert row["group"].startswith("#") and row["group"] in group[1]
    for _, text, _ in (listed, as_json, group_json):
        assert "secret-account" not in text
    main = group[1].partition("<main")[2].partition(">")[2]  # the address of the page, which its viewer typed, is not hidden
    assert "secret-account" not in main
    assert "likes" not in main


async def test_stream_sends_the_page_at_once_and_again_when_it_changes(app: Place, settings: Settings, redis_client: Redis) -> None:
    await opened(app, redis_client, ["anna"])
    async with running_console(settings) as console, asyncio.timeout(30):
        stream = await console.stream(FOLD_PATH)
        first = await stream.content.readuntil(b"\n\n")
        await redis_client.delete(*[key async for key in redis_client.scan_iter(match=f"{{{app.names.app_id}/*")])
        second = first
        while b"anna" in second:
            second = await stream.content.readuntil(b"\n\n")
        stream.close()

    assert "text/event-stream" == stream.headers["Content-Type"]
    assert first.startswith(b"data: ") and b"anna" in first
    assert b"No group is open" in second


async def test_open_pages_are_limited_and_one_that_is_closed_makes_room(
    app: Place, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_STREAMS", 2)
    monkeypatch.setattr(server, "STREAM_SECONDS", 0.05)
    async with running_console(settings) as console:
        streams = [await console.stream("/workers") for _ in range(3)]
        statuses = [stream.status for stream in streams]
        streams[0].close()

        async def has_room() -> bool:
            stream = await console.stream("/workers")
            stream.close()
            return stream.status == 200

        await wait_until(has_room, 30, "a page may be open")
        for stream in streams:
            stream.close()

    assert [200, 200, 503] == statuses


async def test_topics_that_exist_and_are_empty_have_designed_pages(app: Place, settings: Settings, redis_client: Redis) -> None:
    await opened(app, redis_client, ["anna"])
    async with running_console(settings) as console:
        _, text, _ = await console.get(f"{FOLD_PATH}/group?key=anna")

    assert "No record of it was found." in text
    assert "The topic has none." in text


async def test_topic_shows_its_newest_records_by_key_and_partition(app: Place, settings: Settings) -> None:
    source = app.topics[0]
    await create_topics(app.bootstrap, app.topics, partitions=3)
    values = [b'{"a": 1}', b"\xff\xfe", b"<script>alert(1)</script>", b"x" * 900_000, None]
    for number, value in enumerate(values):
        await produce(app.bootstrap, source, [(f"k{number}".encode(), value)], headers=[("h\0", b"\xff")])
    async with running_console(settings) as console:
        everything = (await console.json(f"/topics/{source}.json"))["records"]
        of_key = (await console.json(f"/topics/{source}.json?key=k1"))["records"]
        partitions = [(await console.json(f"/topics/{source}.json?partition={number}"))["records"]["rows"] for number in range(3)]
        status, text, _ = await console.get(f"/topics/{source}")
        wrong = [await console.get(f"/topics/{source}?partition={one}") for one in ("x", "99")]
        unknown = await console.get("/topics/another")

    assert ({"k0", "k1", "k2", "k3", "k4"}, 3, True) == (
        {row["key"] for row in everything["rows"]}, everything["partitions"], everything["is_whole"]
    )  # fmt: skip
    kinds = {row["key"]: (row["kind"], row["value_bytes"], row["is_cut"]) for row in everything["rows"]}
    assert {"k0": ("json", 8, False), "k1": ("bytes", 2, False), "k2": ("text", 25, False), "k3": ("text", 900_000, True),
            "k4": ("empty", 0, False)} == kinds  # fmt: skip
    assert ["k1"] == [row["key"] for row in of_key["rows"]]
    assert 5 == sum(map(len, partitions))
    assert (200, [400, 200], 404) == (status, [one[0] for one in wrong], unknown[0])
    assert "has no partition 99" in wrong[1][1]
    assert "<script>alert" not in text


async def test_topic_that_does_not_exist_says_so_in_its_place(app: Place, settings: Settings) -> None:
    async with running_console(settings) as console:
        found = await console.json(f"/topics/{app.topics[0]}.json")

    assert ("missing", True) == (found["records"]["type"], "does not exist" in found["records"]["why"])


async def test_events_of_a_group_without_a_journal_are_read_from_the_source(
    app: Place, settings: Settings, redis_client: Redis
) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=1)
    for account, names in (("anna", ["likes"]), ("bert", ["saves"]), ("anna", ["shares", "likes"])):
        value = json.dumps({"account_id": account, "metrics": dict.fromkeys(names, 1)}).encode()
        await produce(app.bootstrap, app.topics[0], [(account.encode(), value)])
    events = [FoldEvent(0, 1_000, b"sanna", {"likes": 1}), FoldEvent(2, 1_002, b"sanna", {"shares": 1, "likes": 1})]
    await open_in(app.names.app_id, FOLD, app.topics[0], redis_client, 0, events)
    async with running_console(settings) as console:
        page = await console.json(f"{FOLD_PATH}/group.json?key=anna")
    found = page["parts"][0]["events"]

    assert (f"topic {app.topics[0]}", True) == (found["source"], found["is_whole"])
    assert [(2, ["shares", "likes"]), (0, ["likes"])] == [(row["offset"], row["changed"]) for row in found["rows"]]


async def test_record_is_shown_with_its_events(app: Place, settings: Settings) -> None:
    source, output, _ = app.topics
    await create_topics(app.bootstrap, app.topics, partitions=2)
    event = json.dumps({"account_id": "anna", "metrics": {"likes": 1}}).encode()
    await produce(app.bootstrap, source, [(b"anna", event)], partition=1)
    fold_id = f"{FOLD}:{source}:1:0-0"
    about = {"id": fold_id, "reason": "quiet", "events": 1, "first_event_ms": 5, "last_event_ms": 5}
    value = json.dumps({"account_id": "anna", "metrics": ["likes"], "fold": about}).encode()
    await produce(app.bootstrap, output, [(b"anna", value)], headers=[("fold-id", fold_id.encode())])
    async with running_console(settings) as console:
        (row,) = (await console.json(f"{FOLD_PATH}/group.json?key=anna"))["records"]["rows"]
        page = await console.json(row["link"].replace("/record?", "/record.json?"))
        status, text, _ = await console.get(row["link"])
        others = [
            await console.get(f"{FOLD_PATH}/record?{query}") for query in ("id=x&key=a", f"id={fold_id}", "id=f:s:1:0-0&key=a")
        ]
        unknown = await console.json(f"{FOLD_PATH}/record.json?id={FOLD}:{source}:1:7-9&key=anna")

    assert (200, [400, 400, 400]) == (status, [one[0] for one in others])
    assert "because it was quiet" in text
    assert (fold_id, 1, ["likes"]) == tuple(page["found"]["about"][name] for name in ("fold_id", "events", "changed"))
    assert [(0, ["likes"])] == [(one["offset"], one["changed"]) for one in page["events"]["rows"]]
    assert (None, True) == (unknown["found"]["record"], unknown["found"]["is_whole"])


async def test_subscriber_is_shown_and_what_became_of_an_event(
    app: Place, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = app.names.topic("paid")
    await create_topics(app.bootstrap, [topic, f"{topic}.ship.dead"], partitions=1)
    module = f"console_events_{app.names.app_id.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(CATALOGUE.replace("TOPIC", topic))
    monkeypatch.syspath_prepend(str(tmp_path))
    declared = Settings.model_validate({**dict(settings), "events": {"catalogue": f"{module}:catalogue"}})
    async with running_console(declared) as console:
        page = await console.json("/subscribers/ship.json?event=o-1")
        status, text, _ = await console.get("/subscribers/ship")
        overview = await console.json("/overview.json")
        unknown = (await console.get("/subscribers/another"))[0]
    async with running_console(with_console(declared, hide_values=True)) as console:
        hidden = await console.json("/subscribers/ship.json?event=o-1")

    remarks = ("subscriber ship is suspended: its last attempts", "subscriber ship: Redis", "subscriber", "subscriber other waits")

    assert ["/subscribers/ship"] * 2 + ["/workers"] * 2 == [link_of_remark(text, declarations_of(declared)) for text in remarks]
    assert "No unfinished event of subscriber ship has the id or key o-1" in page["answer"]["paragraphs"][0]["verdict"]
    assert (200, 404, True) == (status, unknown, "Hands the &lt;parcel&gt; over." in text)
    assert [topic] == [root["node"]["name"] for root in overview["picture"] if root["branches"][0]["node"]["name"] == "ship"]
    assert (None, "", False) == (hidden["answer"], hidden["asked"], hidden["may_ask"])


OF_RECORDS = """
import msgspec
from streams_app import Catalogue, Received, records_of, subscriber

class Changed(msgspec.Struct, frozen=True):
    account_id: str

@subscriber(records_of("account-metrics", Changed), idempotent="yes", description="Ships.")
async def ship(event: Received[Changed]) -> None:
    pass

catalogue = Catalogue(subscribers=(ship,))
"""


async def test_record_is_shown_with_what_became_of_it_in_a_subscriber(
    app: Place, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output, _ = app.topics
    await create_topics(app.bootstrap, [*app.topics, f"{output}.ship.dead"], partitions=1)
    module = f"console_calls_{app.names.app_id.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(OF_RECORDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    declared = Settings.model_validate({**dict(settings), "events": {"catalogue": f"{module}:catalogue"}})
    fold_id = f"{FOLD}:{source}:0:0-0"
    value = json.dumps({"account_id": "anna", "metrics": ["likes"], "fold": {"id": fold_id}}).encode()
    await produce(app.bootstrap, output, [(b"anna", value)], headers=[("fold-id", fold_id.encode())])
    path = f"{FOLD_PATH}/record.json?id={fold_id}&key=anna"
    async with running_console(declared) as console:
        (calls,) = (await console.json(path))["calls"]
        status, text, _ = await console.get(path.replace(".json", ""))
        asked = await console.get(calls["link"])
        missing = (await console.json(path.replace(":0-0", ":7-9")))["calls"]
    async with running_console(with_console(declared, hide_values=True)) as console:
        hidden = (await console.json(path))["calls"]

    assert ("ship", "found", []) == (calls["subscriber"], calls["answer"]["type"], missing)
    assert any("ship" in one["verdict"] for one in calls["answer"]["paragraphs"])
    assert (200, True, 200, []) == (status, "Its calls of subscriber" in text, asked[0], hidden)
