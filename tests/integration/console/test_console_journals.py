"""The page of a journal: equal to the commands, with keys and values that attack, with hidden values, and without Redis."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest
from redis.asyncio import Redis

from streams_app.embedded.ports import free_port
from streams_app.settings import Settings
from tests.helpers.console.consoles import running_console, with_console
from tests.helpers.journal.journal_desk import Desk, three_days
from tests.helpers.journal.journals import row

PATH = "/journals/accounts"


async def printed(desk: Desk, *arguments: str) -> list[Any]:
    ran = await asyncio.to_thread(desk, *arguments, "--json")
    assert 0 == ran.code, ran.text
    return [json.loads(line) for line in ran.out.splitlines()]


async def test_days_and_largest_keys_equal_those_of_the_command(desk: Desk) -> None:
    await three_days(desk)
    await desk.shard.gap(9)
    segments = await printed(desk, "list")
    top = (await asyncio.to_thread(desk, "list", "--top")).out.splitlines()
    async with running_console(desk.settings) as console:
        found = (await console.json(f"{PATH}.json"))["contents"]
        _, text, _ = await console.get(PATH)

    days = sorted({one["day"] for one in segments}, reverse=True)
    sums = [
        (
            day,
            *(sum(one[field] for one in segments if one["day"] == day) for field in ("entries", "received_bytes", "stored_bytes")),
        )
        for day in days
    ]
    assert sums == [tuple(one[field] for field in ("day", "events", "received_bytes", "stored_bytes")) for one in found["days"]]
    assert 6 == sum(one["lost"] for one in found["days"])
    assert [line.split()[0] for line in top[2:]] == [one["key"] for one in found["keys"]]
    assert top[0] == found["says"]
    assert all(day in text for day in days)


@pytest.mark.parametrize("begin", ["earliest", "2026-08-19", "0-0"])
async def test_events_of_a_key_equal_those_of_the_command(desk: Desk, begin: str) -> None:
    await three_days(desk)
    await desk.shard.gap(9)
    lines = await printed(desk, "read", "a", "--from", begin)
    async with running_console(desk.settings) as console:
        found = (await console.json(f"{PATH}.json?key=a&from={begin}"))["entries"]

    assert [(one.get("offset", one.get("first")), one.get("at_ms", -1), "why" in one) for one in lines] == [
        (one["first"], one["at_ms"], one["is_gap"]) for one in found["rows"]
    ]
    assert [one["value"] for one in lines if "why" not in one] == [
        json.dumps(json.loads(one["value"])) for one in found["rows"] if not one["is_gap"]
    ]
    assert (True, lines[-1]["cursor"]) == (found["is_caught_up"], found["next"])


async def test_reading_goes_on_page_by_page_and_follows(desk: Desk) -> None:
    await desk.shard.append([row("a", offset) for offset in range(130)])
    async with running_console(desk.settings) as console:
        first = (await console.json(f"{PATH}.json?key=a"))["entries"]
        second = (await console.json(first["next_link"].replace(PATH, f"{PATH}.json")))["entries"]
        end = second["next_link"].replace(PATH, f"{PATH}.json")
        nothing = (await console.json(end))["entries"]
        _, text, _ = await console.get(second["next_link"])
    await desk.shard.append([row("a", 130)])
    async with running_console(desk.settings) as console:
        more = (await console.json(end))["entries"]

    assert [(100, False), (30, True), (0, True), (1, True)] == [
        (len(one["rows"]), one["is_caught_up"]) for one in (first, second, nothing, more)
    ]
    assert "No event of it since then." in text


async def test_events_of_a_folded_record_have_what_they_changed(desk: Desk) -> None:
    await three_days(desk)
    fold_id = "f:events:0:0-2"
    lines = await printed(desk, "read", "a", "--fold", fold_id)
    async with running_console(desk.settings) as console:
        found = await console.json(f"{PATH}.json?key=a&fold={fold_id}")
        status, text, _ = await console.get(f"{PATH}?key=a&fold={fold_id}")

    assert [(one["offset"], one["changed"]) for one in lines] == [
        (one["first"], one["changed"]) for one in found["entries"]["rows"]
    ]
    assert (200, True) == (status, "shares" in text)
    assert f"journal read a --journal accounts --fold {fold_id}" in found["command"]


KEYS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202eabc",
    "a\0b",
    "漢字",
    "17",
    "[1]",
    "k" * 500,
    "x y&z=1#q",
]


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
async def test_key_that_attacks_is_shown_as_text_and_its_events_are_found(desk: Desk, key: str) -> None:
    values = [b"<script>alert(1)</script>", b"\xff\xfe\0", "\u202e".encode(), b"x" * 50_000, None]
    await desk.shard.append([row(key, offset, 0, value) for offset, value in enumerate(values)])
    async with running_console(desk.settings) as console:
        (largest,) = (await console.json(f"{PATH}.json"))["contents"]["keys"]
        status, text, _ = await console.get(largest["link"])
        page = await console.json(largest["link"].replace(PATH, f"{PATH}.json"))

    assert (200, 5) == (status, len(page["entries"]["rows"]))
    assert ["text", "bytes", "text", "text", "empty"] == [one["kind"] for one in page["entries"]["rows"]]
    assert [50_000, True] == [page["entries"]["rows"][3][field] for field in ("value_bytes", "is_cut")]
    assert not any(raw in text for raw in ("<script>alert", "<img src=x", "\u202e", "\0"))


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("key=a&from=yesterday", 400, "nothing to begin at"),
        ("key=a&fold=x", 400, "not a fold id"),
        ("unkeyed=%3Cb%3E", 400, "one of"),
        ("key=" + "k" * 3_000, 400, "too long"),
        ("key=a&from=other:0-1", 200, "of journal other"),
        ("key=a&fold=f:other:0:0-2", 200, "the record is of other"),
        ("key=a&from=99-1", 200, "does not exist"),
        ("key=%ff%00", 200, "No event of it."),
        ("unkeyed=yes", 200, "Events without a key"),
    ],
)
async def test_bad_question_is_answered_in_words(desk: Desk, query: str, status: int, says: str) -> None:
    await three_days(desk)
    async with running_console(desk.settings) as console:
        found, text, _ = await console.get(f"{PATH}?{query}")

    assert (status, True) == (found, says in text)


async def test_hidden_values_are_nowhere(desk: Desk) -> None:
    await desk.shard.append([row("secret-account", 0, 0, b'{"secret": 1}')])
    async with running_console(with_console(desk.settings, hide_values=True)) as console:
        page = await console.json(f"{PATH}.json?key=secret-account&unkeyed=yes")
        _, text, _ = await console.get(f"{PATH}?key=secret-account")

    (key,) = page["contents"]["keys"]
    assert (None, "", "", True) == (page["entries"], page["asked"], key["link"], key["key"].startswith("#"))
    main = text.partition("<main")[2].partition(">")[2]
    assert "secret" not in main and "secret" not in json.dumps(page)


async def test_journal_without_state_and_without_redis_says_so(desk: Desk, redis_client: Redis) -> None:
    away = Settings.model_validate({**dict(desk.settings), "redis": {"url": f"redis://127.0.0.1:{free_port()}/0"}})
    await redis_client.delete(*[key async for key in redis_client.scan_iter(match=f"{{{desk.settings.app_id}/*")])
    async with running_console(desk.settings) as console:
        empty = await console.json(f"{PATH}.json?key=a")
        _, text, _ = await console.get(PATH)
    async with running_console(away) as console:
        missing = await console.json(f"{PATH}.json?key=a")
        status, page, _ = await console.get(f"{PATH}?key={quote('a')}")

    assert ([], "no worker has read it yet" in empty["contents"]["says"]) == (empty["contents"]["days"], True)
    assert "It has no events yet." in text
    assert ["missing", "missing"] == [missing[part]["type"] for part in ("contents", "entries")]
    assert (200, 2) == (status, page.count("cannot be read now"))
