"""The search over HTTP: a key of an open group leads to its page, and bad input gets an answer."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from redis.asyncio import Redis

from streams_app.folding.core.event import FoldEvent
from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD, Place
from tests.helpers.console.consoles import running_console, with_console
from tests.helpers.folding.scripts import open_in

KEYS = ["anna", "<b>&key=x", "a\0b", "\u202eabc", "1"]


@pytest.fixture
async def settings(app: Place, redis_client: Redis) -> Settings:
    events = [FoldEvent(number, 1_000 + number, b"s" + key.encode(), {"likes": 1}) for number, key in enumerate(KEYS)]
    await open_in(app.names.app_id, FOLD, app.topics[0], redis_client, 0, events)
    return Settings.load(Path(app.config()), {})


async def test_key_of_an_open_group_leads_to_its_page_and_json_says_where(settings: Settings) -> None:
    async with running_console(settings) as console:
        answers = [await console.get(f"/search?q={quote(key)}") for key in KEYS[:4]]
        pages = [await console.get(headers["Location"]) for _, _, headers in answers]
        found = await console.json("/search.json?q=anna")

    link = f"/folds/{FOLD}/group?key=anna"
    assert [303] * 4 == [status for status, _, _ in answers] and [200] * 4 == [status for status, _, _ in pages]
    assert [link, link] == [found["straight"], found["groups"][0]["link"]]


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("", 200, "Write the name of a fold"),
        ("   ", 200, "Write the name of a fold"),
        ("nobody", 200, "no group with this key is open"),
        ("x" * 5_000, 400, "q is too long"),
        ("\0", 200, "no group with this key is open"),
        ("\u202e", 200, "no group with this key is open"),
        (FOLD, 200, f'href="/folds/{FOLD}"'),
    ],
    ids=range(7),
)
async def test_search_answers_any_text(settings: Settings, text: str, status: int, words: str) -> None:
    async with running_console(settings) as console:
        answer = await console.get(f"/search?q={quote(text)}")

    assert status == answer[0] and words in answer[1]
    assert "\0" not in answer[1] and "\u202e" not in answer[1]


async def test_names_are_found_while_redis_is_away(settings: Settings) -> None:
    away = Settings.model_validate({**dict(settings), "redis": {"url": "redis://127.0.0.1:1/0"}})
    async with running_console(away) as console:
        found = await console.json(f"/search.json?q={FOLD}")

    assert "missing" == found["groups"]["type"] and f"/folds/{FOLD}" == found["hits"][0]["link"]


async def test_pages_that_look_for_values_are_not_offered_where_values_are_hidden(settings: Settings) -> None:
    async with running_console(with_console(settings, hide_values=True)) as console:
        found = await console.json("/search.json?q=nobody")

    assert [] == found["offers"]


async def test_link_to_the_json_of_a_page_asks_the_same(settings: Settings) -> None:
    text = "nobody&q=x#y%"
    async with running_console(settings) as console:
        _, page, _ = await console.get(f"/search?q={quote(text)}")
        link = re.search('href="(/search.json[^"]*)"', page)
        assert link is not None
        found = await console.json(unescape(link[1]))

    assert text == found["asked"]
