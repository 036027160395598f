"""The first state of the project page of the examples, as its server renders it."""

from __future__ import annotations

from typing import Any

import pytest

from examples.project_page.rendering import ago, in_the_last, placeholders

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def state(view: str, **fields: Any) -> dict[str, Any]:
    return {"view": view, "state": "ok", "since_ms": None, "expiry_ms": 24 * HOUR_MS, "count": 0, "more": False} | fields


def test_page_without_a_hub_has_dashes() -> None:
    found = placeholders("7", {})

    assert ("\u2013", "contributions", "", "") == tuple(found[name] for name in ("SUPPORTERS", "SUPPORTERS_WHAT", "NAMES", "NEWS"))
    assert ("\u2013", "marked") == (found["VISITORS"], found["STATE_CLASS"])
    assert found["STATE"].startswith("Offline")


@pytest.mark.parametrize(
    ("one", "text"),
    [
        ({"state": "behind", "since_ms": NOW_MS}, "Behind: as it was at 22:13 UTC."),
        ({"state": "incomplete", "since_ms": NOW_MS}, "What happened before 22:13 UTC may be missing."),
        ({"state": "reading"}, "What happened lately is being read again."),
        ({}, "<noscript>As it was at 22:13 UTC: without JavaScript, reload this page to follow.</noscript>"),
    ],
)
def test_page_says_how_current_it_is(one: dict[str, Any], text: str) -> None:
    found = placeholders("7", {"views": [state("visitors"), state("names", **one)], "now_ms": NOW_MS})

    assert text == found["STATE"]


@pytest.mark.parametrize(
    ("expiry_ms", "text"),
    [(24 * HOUR_MS, " in the last 24 hours"), (HOUR_MS, " in the last hour"), (60_000, " in the last minute"),
     (1_800_000, " in the last 30 minutes"), (90_000, " in the last 90 seconds"), (1_500, " in the last 2 seconds")],
)  # fmt: skip
def test_heading_has_the_expiry_of_the_view(expiry_ms: int, text: str) -> None:
    assert text == in_the_last({"expiry_ms": expiry_ms})


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "just now"),
        (59_999, "just now"),
        (60_000, "1 minute ago"),
        (HOUR_MS, "1 hour ago"),
        (50 * HOUR_MS, "50 hours ago"),
    ],
)
def test_age_is_in_words(ms: int, text: str) -> None:
    assert text == ago(ms)


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", " javascript:alert(1)", "java\nscript:alert(1)", "data:text/html,x", None, 7, "x"]
)
def test_content_of_producers_is_neither_markup_nor_a_script(url: Any) -> None:
    item = {"item": '"><script>', "time_ms": NOW_MS, "data": {"author": "<i>", "title": "</a>", "url": url}}
    found = placeholders('"/', {"views": [state("news", items=[item, item | {"data": None}])], "now_ms": NOW_MS})["NEWS"]

    assert "<script" not in found
    assert "<i>" not in found
    assert 'href="#"' in found
    assert 'action="/project/%22%2F/unpublish"' in found


def test_addresses_of_the_web_are_links() -> None:
    urls = ["/project/7#a", "https://www.example.com/?a=1&b=2", "HTTP://x"]
    items = [{"item": url, "time_ms": NOW_MS, "data": {"url": url}} for url in urls]
    found = placeholders("7", {"views": [state("news", items=items)], "now_ms": NOW_MS})["NEWS"]

    assert 3 == sum(f'href="{url.replace("&", "&amp;")}"' in found for url in urls)
