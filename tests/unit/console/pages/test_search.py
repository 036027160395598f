"""What a text finds."""

from __future__ import annotations

import pytest

from streams_app.console.pages.search import Hit, SearchPage, html, matching, meant, named, offered
from streams_app.console.reading.asking import OtherPage
from streams_app.requirements.declarations import declarations_of
from streams_app.settings import Settings

LIKES = {"name": "likes", "source": "posts", "group_key": "id", "changed": "names", "quiet_period": "15m"}
COMPONENTS = {
    "journals": [{"name": "kept", "source": "posts", "key": "id"}],
    "live": [{"name": "visitors", "kind": "presence", "expiry": "1m", "public": True}],
    "read_stores": [{"name": "dash", "url": "sqlite:///x", "folds": ["likes"], "source_url": "sqlite:///y", "sql": "SELECT 1"}],
}
DECLARED = declarations_of(
    Settings.model_validate({"app_id": "shop", "folds": [LIKES, {**LIKES, "name": "likes-by-day"}], **COMPONENTS})
)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("likes", ("fold", "likes", "/folds/likes")),
        ("LIKES-BY", ("fold", "likes-by-day", "/folds/likes-by-day")),
        ("kept", ("journal", "kept", "/journals/kept")),
        ("visit", ("live view", "visitors", "/live/visitors")),
        ("dash", ("read store", "dash", "/read-stores/dash")),
        ("overv", ("page", "Overview", "/")),
        ("posts", ("topic", "posts", "/topics/posts")),
        ("worker.tick", ("setting", "worker.tick", "/settings#worker.tick")),
    ],
)
def test_name_is_found_by_a_part_of_it_the_exact_one_first(text: str, first: tuple[str, str, str]) -> None:
    found = matching(text, list(named(DECLARED)))[0]

    assert first == (found.kind, found.name, found.link)


def test_name_of_a_fold_does_not_find_its_settings() -> None:
    assert {"fold", "topic"} == {hit.kind for hit in matching("likes", list(named(DECLARED)))}


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("likes:posts:3:10-20", ["/folds/likes"]),
        ("likes:posts:3:10-20 a b", ["/folds/likes/record?id=likes%3Aposts%3A3%3A10-20&key=a%20b"]),
        ("other:posts:3:10-20", []),
        ("posts:3:10", []),
        ("\0", []),
        ("\u202e:1:1", []),
        ("x" * 2_000, []),
    ],
)
def test_id_means_a_record(text: str, links: list[str]) -> None:
    assert links == [hit.link for hit in meant(DECLARED, text)]


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "\0\u202e", "a&key=b#c", "k" * 2_000])
def test_text_that_attacks_is_shown_as_text_and_stays_within_its_parameter(text: str) -> None:
    page = html(SearchPage(text, [Hit("open group", text, "/", text)], 0, [], list(offered(DECLARED, text)), "", 0))

    assert not any(raw in page for raw in ("<script>", "\0", "\u202e", "key=a&key=b"))


def test_browser_is_sent_to_the_only_open_group() -> None:
    with pytest.raises(OtherPage) as caught:
        html(SearchPage("anna", [], 0, [], [], "/folds/likes/group?key=anna", 0))

    assert "/folds/likes/group?key=anna" == caught.value.link


def test_key_is_offered_where_it_can_be_asked_for() -> None:
    links = {hit.kind: hit.link for hit in offered(DECLARED, "a/b&c")}

    assert {"/journals/kept?key=a%2Fb%26c", "/live/visitors?page=a%2Fb%26c"} <= {links["journal"], links["live view"]}
