"""The page of a search: what an application has under a name, a group key, or the id of an event or record."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from streams_app.console.pages.dead_letters import dead_letter_path
from streams_app.console.pages.fold import group_path
from streams_app.console.pages.group import record_path
from streams_app.console.pages.journal import key_link
from streams_app.console.pages.live import page_link
from streams_app.console.pages.paths import WORKERS_PATH, fold_path, journal_path, store_path, subscriber_path, view_path
from streams_app.console.pages.rendering import render
from streams_app.console.pages.settings import SETTINGS_PATH
from streams_app.console.pages.topic import topic_path
from streams_app.console.reading.asking import Asked, OtherPage
from streams_app.console.reading.console_reader import ConsoleReader, Missing
from streams_app.errors import ConfigurationError
from streams_app.operations.folded_events import parse_fold_id
from streams_app.operations.groups import folds_with_open
from streams_app.requirements.components import DEAD_LETTERS, topics_of
from streams_app.requirements.declarations import Declarations
from streams_app.settings.described import settings_in_force

MOST_HITS: Final = 50
MOST_OFFERS: Final = 20
_POSITION: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249}):(?P<partition>\d{1,10}):(?P<offset>\d{1,19})", re.ASCII)


class Hit(msgspec.Struct, frozen=True):
    """Something that was found, or a page that can be asked for it."""

    kind: str
    name: str
    link: str
    about: str = ""


class SearchPage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        hits: What has the text in its name, or is meant by it.
        more: Number of hits that are not shown.
        groups: Open groups with this key; None: nothing was asked.
        offers: Pages that look for the text in Kafka and Redis when they are opened.
        straight: Path of the page of the only open group with this key; a browser is sent there. Empty if there is none.
    """

    asked: str
    hits: list[Hit]
    more: int
    groups: list[Hit] | Missing | None
    offers: list[Hit]
    straight: str
    now_ms: int


def html(model: SearchPage) -> str:
    """Render the page.

    Raises:
        OtherPage: The text is the key of an open group.
    """
    if model.straight:
        raise OtherPage(model.straight)
    return render("search.html", model=model)


async def collect(reader: ConsoleReader, declarations: Declarations, asked: Asked) -> SearchPage:
    """Collect the page from the declarations, and from Redis whether a group with this key is open."""
    text = asked.text("q").strip()
    if not text:
        return SearchPage("", [], 0, None, [], "", reader.clock.now_ms())
    hits = [*meant(declarations, text), *matching(text, list(named(declarations)))]
    folds = await reader.redis_part("the open groups", ("search", text), lambda: folds_with_open(reader.settings, text))
    groups = folds if isinstance(folds, Missing) else [Hit("open group", text, group_path(fold, text), fold) for fold in folds]
    straight = groups[0].link if not isinstance(groups, Missing) and len(groups) == 1 and not hits else ""
    may_ask = not reader.settings.console.hide_values
    offers = list(offered(declarations, text))[:MOST_OFFERS] if may_ask else []
    return SearchPage(
        text, hits[:MOST_HITS], max(0, len(hits) - MOST_HITS), groups, offers, straight, reader.clock.now_ms()
    )  # fmt: skip


def pages_of(declarations: Declarations) -> Iterator[Hit]:
    """Yield everything that has a name and a page of its own, in the order of the navigation."""
    yield Hit("page", "Overview", "/")
    yield Hit("page", "Workers", WORKERS_PATH)
    yield Hit("page", "Settings", SETTINGS_PATH)
    for fold in declarations.settings.folds:
        yield Hit("fold", fold.name, fold_path(fold.name))
    for one in declarations.workload.subscriptions:
        yield Hit("subscriber", one.subscriber.name, subscriber_path(one.subscriber.name), f"reads {one.topic}")
    for store in declarations.settings.read_stores:
        yield Hit("read store", store.name, store_path(store.name), f"of {', '.join(store.folds)}")
    for view in declarations.settings.live:
        yield Hit("live view", view.name, view_path(view.name), f"of {view.source}" if view.source else "of open browsers")
    for journal in declarations.settings.journals:
        yield Hit("journal", journal.name, journal_path(journal.name), f"of {journal.source}")
    for topic in topics_of(declarations.workload):
        yield Hit("topic", topic.name, topic_path(topic.name))


def named(declarations: Declarations) -> Iterator[Hit]:
    """Yield everything that has a name: pages, and settings, which are on one page."""
    yield from pages_of(declarations)
    for setting in settings_in_force(declarations.settings):
        yield Hit("setting", setting.path, f"{SETTINGS_PATH}#{quote(setting.path)}", setting.value)


def matching(text: str, known: Sequence[Hit]) -> list[Hit]:
    """Return those whose name contains a text, in any case: first the same name, then those that begin with it.

    Of a setting, only the last name counts, unless the text has a point, because the names of folds are in those of all their
    settings.
    """
    wanted = text.casefold()

    def is_found(one: Hit) -> bool:
        name = one.name.rpartition(".")[2] if one.kind == "setting" and "." not in wanted else one.name
        return wanted in name.casefold()

    found = [one for one in known if is_found(one)]
    return sorted(found, key=lambda one: (one.name.casefold() != wanted, not one.name.casefold().startswith(wanted)))


def meant(declarations: Declarations, text: str) -> Iterator[Hit]:
    """Yield what a text means by its form: a fold id, also with the group key behind it, or the position of an event."""
    words = text.split(maxsplit=1)
    try:
        where = parse_fold_id(words[0])
    except ConfigurationError:
        yield from _events_at(declarations, text)
        return
    if where.fold in {fold.name for fold in declarations.settings.folds}:
        offsets = f"of the offsets {where.first:,} to {where.last:,} of partition {where.partition} of {where.source}"
        link = record_path(where.fold, words[0], words[1]) if len(words) > 1 else fold_path(where.fold)
        yield Hit(
            "folded record", words[0], link, offsets if len(words) > 1 else f"{offsets}; with its group key behind it: the record"
        )


def _events_at(declarations: Declarations, text: str) -> Iterator[Hit]:
    found = _POSITION.fullmatch(text)
    for one in declarations.workload.subscriptions:
        if found is not None and one.topic == found["topic"]:
            link = f"{subscriber_path(one.subscriber.name)}?{urlencode({'event': text}, quote_via=quote)}"
            yield Hit("event", text, link, f"what became of it in {one.subscriber.name}")
    for topic in topics_of(declarations.workload):
        if found is not None and topic.role == DEAD_LETTERS and topic.name == found["topic"]:
            link = dead_letter_path(topic.name, int(found["partition"]), int(found["offset"]))
            yield Hit("dead letter", text, link, "its reason in words")


def offered(declarations: Declarations, text: str) -> Iterator[Hit]:
    """Yield pages that search Kafka and Redis for a key or an id, which a search does not."""
    for one in declarations.workload.subscriptions:
        link = f"{subscriber_path(one.subscriber.name)}?{urlencode({'event': text}, quote_via=quote)}"
        yield Hit("subscriber", one.subscriber.name, link, "as the id or key of an event")
    for view in declarations.settings.live:
        yield Hit("live view", view.name, page_link(view, text), "as the name of a page")
    for journal in declarations.settings.journals:
        yield Hit("journal", journal.name, key_link(journal, text), "as the key of events")
    for topic in topics_of(declarations.workload):
        yield Hit(
            "topic", topic.name, f"{topic_path(topic.name)}?{urlencode({'key': text}, quote_via=quote)}", "as the key of records"
        )
