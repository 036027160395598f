"""All pages of the console: path and model of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec

from streams_app.console.pages import (
    dead_letters,
    fold,
    group,
    journal,
    live,
    overview,
    read_store,
    record,
    search,
    settings,
    subscriber,
    topic,
    workers,
)
from streams_app.console.pages.paths import WORKERS_PATH
from streams_app.console.reading.asking import Asked
from streams_app.console.reading.console_reader import ConsoleReader
from streams_app.requirements.declarations import Declarations


class Parameter(NamedTuple):
    """A value of the query, for the OpenAPI document."""

    name: str
    what: str


class ConsolePage(NamedTuple):
    """A page of the console.

    Attributes:
        path: Its path, with parameters in braces.
        json_path: The path of the same as JSON.
        title: Its title, with the names of its parameters in braces.
        what: What it shows, for the OpenAPI document.
        is_live: Whether an open page is sent anew when it changes.
    """

    path: str
    json_path: str
    title: str
    what: str
    html: Callable[[Any], str]
    model: type[msgspec.Struct]
    collect: Callable[[ConsoleReader, Declarations, Asked], Awaitable[Any]]
    parameters: tuple[Parameter, ...] = ()
    is_live: bool = True


async def _overview(reader: ConsoleReader, declarations: Declarations, _: Asked) -> overview.Overview:
    return await overview.collect(reader, declarations)


PAGES: Final = (
    ConsolePage(
        "/", "/overview.json", "Overview", "Whether all is well, the figures, the application as a picture, and its workers.",
        overview.html, overview.Overview, _overview,
    ),
    ConsolePage(
        "/folds/{fold}", "/folds/{fold}.json", "{fold}",
        "What a fold does, its last hour, what other quiet periods would have folded, and its open groups.",
        fold.html, fold.FoldPage, fold.collect,
        (
            Parameter("sort", f"order of the open groups: {', '.join(fold.SORTS)}"), Parameter("page", "from 1, 50 groups each"),
            Parameter("partitions", "`yes`: open groups, unsent records and lag of each partition, too"),
        ),
    ),
    ConsolePage(
        "/folds/{fold}/group", "/folds/{fold}/group.json", "Group of {fold}",
        "Why a group has not been emitted, its events and bounds, and its last records.",
        group.html, group.GroupPage, group.collect,
        (Parameter("key", "group key, as `streams-app groups list` shows it"),),
    ),
    ConsolePage(
        "/folds/{fold}/record", "/folds/{fold}/record.json", "Record of {fold}", "A folded record, and the events that it is of.",
        record.html, record.RecordPage, record.collect,
        (Parameter("id", "its header fold-id"), Parameter("key", "its group key, as `streams-app groups list` shows it")),
    ),
    ConsolePage(
        "/subscribers/{subscriber}", "/subscribers/{subscriber}.json", "{subscriber}",
        "How a subscriber is, its last hour, and what became of one event.",
        subscriber.html, subscriber.SubscriberPage, subscriber.collect,
        (Parameter("event", "id of an event, TOPIC:PARTITION:OFFSET, or a record key"),),
    ),
    ConsolePage(
        "/read-stores/{store}", "/read-stores/{store}.json", "{store}",
        "The checkpoints and lag of a read store, and its last comparison with its source.",
        read_store.html, read_store.StoreConsolePage, read_store.collect,
    ),
    ConsolePage(
        "/live/{view}", "/live/{view}.json", "{view}",
        "The pages of a live view with most items, the servers that show it, and one page as a browser gets it.",
        live.html, live.ViewConsolePage, live.collect, (Parameter("page", "name of a page, as it is in the events"),),
    ),
    ConsolePage(
        "/journals/{journal}", "/journals/{journal}.json", "{journal}",
        "The days and largest keys of a journal, and the events of one key.",
        journal.html, journal.JournalConsolePage, journal.collect,
        (
            Parameter("key", "key of events, as `streams-app journal read` takes it"),
            Parameter("from", "where reading begins, as `--from` of that command"),
            Parameter("fold", "header fold-id of a record: only its events"), Parameter("unkeyed", "`yes`: events without a key"),
        ),
    ),
    ConsolePage(
        "/topics/{topic}", "/topics/{topic}.json", "{topic}", "The newest records of a topic.", topic.html,
        topic.TopicPage, topic.collect,
        (Parameter("key", "only records with this key"), Parameter("partition", "only records of this partition")),
    ),
    ConsolePage(
        "/topics/{topic}/dead-letter", "/topics/{topic}/dead-letter.json", "Dead letter in {topic}",
        "A dead letter: its reason in words, the field that was wrong, and what to do.",
        dead_letters.html, dead_letters.DeadLetterPage, dead_letters.collect,
        (Parameter("partition", "its partition"), Parameter("offset", "its offset")), is_live=False,
    ),
    ConsolePage(
        WORKERS_PATH, "/workers.json", "Workers", "How each worker is and since when, what it works on, and its last hour.",
        workers.html, workers.WorkersPage, workers.collect,
    ),
    ConsolePage(
        settings.SETTINGS_PATH, "/settings.json", "Settings",
        "All settings as they are in force, without secrets, and the findings of `streams-app check`.",
        settings.html, settings.SettingsPage, settings.collect,
        (Parameter("check", "`run`: run the checks, too"),), is_live=False,
    ),
    ConsolePage(
        "/search", "/search.json", "Search", "What a text names: pages, settings, open groups, events, records.",
        search.html, search.SearchPage, search.collect,
        (Parameter("q", "a name, a group key, the id of an event or of a folded record"),), is_live=False,
    ),
)  # fmt: skip
