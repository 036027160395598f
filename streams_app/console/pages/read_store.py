"""The page of a read store: its checkpoints and lag, its last batch, and the comparison with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from streams_app.console.pages.action_links import ActionLink, offered
from streams_app.console.pages.model import Chart, Problem, Rule, State, line_chart, window_of
from streams_app.console.pages.overview import store_state
from streams_app.console.pages.paths import fold_path, store_path
from streams_app.console.pages.problems import problems_of
from streams_app.console.pages.rendering import render
from streams_app.console.pages.topic import MOST_CHARACTERS, topic_path
from streams_app.console.reading.asking import Asked
from streams_app.console.reading.comparing import ComparisonProgress, ComparisonResult
from streams_app.console.reading.console_reader import ConsoleReader, Missing
from streams_app.console.reading.hiding import Hidden
from streams_app.console.reading.history import EVERY_MS, History
from streams_app.delivery.batch import TP
from streams_app.fold import Fold
from streams_app.formatting import escaped, shown
from streams_app.operations.read_store_status import GroupCell, cells_of_group, checkpoints_of, log_bounds_of
from streams_app.operations.verify import left_of
from streams_app.operations.verify_result import behind_text, cell_text, summary
from streams_app.requirements.declarations import Declarations
from streams_app.settings import ReadStoreSettings, Settings

SHOWN_NULLS: Final = 50
SHOWN_CELLS: Final = 200
"""Maximum number of values of a group."""

KINDS: Final = {
    "wrong": "the store has another value than the source",
    "gone": "the source no longer has the value",
    "missing": "the store lacks the value",
    "refused": "the store can never hold the value, or the source fails",
}


AGES: Final = {0: "this record", 1: "a newer record", -1: "an older record"}


class CheckpointRow(msgspec.Struct, frozen=True):
    """A partition of an output topic.

    Attributes:
        checkpoint: Next offset that the store reads; None: it has read none.
        begin: First offset of the log; None: unknown, as is ``end``.
        left: Number of offsets that the store has not applied; None: unknown.
    """

    topic: str
    partition: int
    checkpoint: int | None
    begin: int | None
    end: int | None
    left: int | None


class CheckpointTable(msgspec.Struct, frozen=True, tag="found"):
    """The checkpoints of a store.

    Attributes:
        left: Number of offsets that the store has not applied, of all partitions; None: unknown.
        most_left: The largest number of a partition.
    """

    rows: list[CheckpointRow]
    left: int | None
    most_left: int


class ShownDifference(msgspec.Struct, frozen=True):
    """A cell whose stored value differs from that of the source, as ``read-store verify`` shows it."""

    fold: str
    group: str
    name: str
    what: str
    stored: str
    current: str


class NullShare(msgspec.Struct, frozen=True):
    """How many cells of a name have no value."""

    fold: str
    name: str
    nulls: int
    cells: int
    share: float


class Comparison(msgspec.Struct, frozen=True, tag="found"):
    """The result of the last comparison.

    Attributes:
        says: The sentences of the command.
        kinds: Number of differences by kind.
        repairable: Number of differences that a repair would write, unless the cells change meanwhile.
        nulls: Share of NULL by fold and name, the highest first.
    """

    at_ms: int
    took_ms: int
    state: State
    word: str
    says: list[str]
    differences: list[ShownDifference]
    total: int
    kinds: dict[str, int]
    repairable: int
    nulls: list[NullShare]


class StoredCellText(msgspec.Struct, frozen=True):
    """A stored value of a group.

    Attributes:
        age: Whether it is from this record, or from a newer or an older one; empty if the version of the record is unknown.
    """

    name: str
    value: str
    version: int
    age: str


class GroupInStore(msgspec.Struct, frozen=True, tag="found"):
    """What a read store has of a group.

    Attributes:
        is_whole: Whether it has no other values.
    """

    store: str
    link: str
    cells: list[StoredCellText]
    is_whole: bool


class StoreConsolePage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        last_batch_ms: Time of the last sample of the console that has new values; None: none has, within the last hour.
        ends: Why the ends of the logs are unknown; None: they are known.
        progress: The comparison that runs now, maybe of another store; None: none does.
    """

    name: str
    path: str
    state: State
    word: str
    problems: list[Problem]
    definition: list[Rule]
    charts: list[Chart]
    last_batch_ms: int | None
    checkpoints: CheckpointTable | Missing
    ends: Missing | None
    comparison: Comparison | Missing | None
    progress: ComparisonProgress | None
    kinds: dict[str, str]
    missing: list[Missing]
    since_ms: int
    now_ms: int
    actions: list[ActionLink] = []


def html(model: StoreConsolePage) -> str:
    """Render the page."""
    return render("read_store.html", model=model)


async def collect(reader: ConsoleReader, declarations: Declarations, asked: Asked) -> StoreConsolePage:
    """Collect the page from the workers and the history, the store, and Kafka."""
    settings = reader.settings
    known = {one.name: one for one in settings.read_stores}
    store = known[asked.named("store", known, "read store")]
    hidden, now_ms = Hidden(settings), reader.clock.now_ms()
    states, missing = await reader.workers_part()
    samples = [worker.samples for worker in states if not worker.fault]
    rate = reader.history.rate_now("read_store_writes_total", now_ms, {"store": store.name})
    state, word = store_state(store.name, samples, rate)
    path = store_path(store.name)
    links = (path, "/workers", topic_path(store.dead_letters))
    problems = [one for one in problems_of(declarations, states, reader.history, now_ms) if one.link in links]
    key = ("read store", store.name)
    checkpoints = await reader.part("its checkpoints", (*key, "checkpoints"), lambda: checkpoints_of(settings, store))
    ends = await reader.part("the ends of its topics", (*key, "ends"), lambda: log_bounds_of(settings, store))
    result = reader.comparisons.results.get(store.name)
    return StoreConsolePage(
        store.name, path, state, word, problems, list(definition_of(store, settings)),
        list(charts_of_store(store.name, reader.history, now_ms)), last_batch_ms(store.name, reader.history, now_ms),
        checkpoints if isinstance(checkpoints, Missing) else table_of(checkpoints, {} if isinstance(ends, Missing) else ends),
        ends if isinstance(ends, Missing) else None, None if result is None else comparison_of(store.name, result, hidden),
        reader.comparisons.progress, KINDS, missing, reader.history.since_ms(now_ms),
        now_ms, offered(settings, ("repair", "Repair…", {"store": store.name})),
    )  # fmt: skip


def definition_of(store: ReadStoreSettings, settings: Settings) -> Iterator[Rule]:
    """Yield the declaration in plain words, without the URL, which may have a password."""
    for name in store.folds:
        yield Rule("reads", f"records of {name}", fold_path(name))
    how = "a row for each name of a group" if store.shape == "cells" else "a row for each group"
    yield Rule("into", f"{store.url.partition(':')[0].partition('+')[0]}, table {store.table}, {how}")
    sources = {"sql": "a query", "carried": "the records", "python": "a function"}
    yield Rule("values from", sources[store.source])
    if store.dead_letters:
        yield Rule("rejects to", store.dead_letters, topic_path(store.dead_letters))


def charts_of_store(name: str, history: History, now_ms: int) -> Iterator[Chart]:
    """Yield the charts of the last time."""
    of, window = {"store": name}, window_of(history, now_ms)
    slots, step = window.slots, window.step
    writes = list(history.rate("read_store_writes_total", now_ms, of, slots=slots, step=step))
    now = history.rate_now("read_store_writes_total", now_ms, of)
    yield line_chart(
        "writes", "Values written", "values/s", "Zero while the lag rises: see the reasons at the top.", writes, window, now
    )
    lag = history.gauge("read_store_lag_records", now_ms, of, how="max", slots=slots, step=step)
    yield line_chart("lag", "Lag", "records", "Rising: the store or its source is down or slow.", lag, window)
    oldest = history.gauge("read_store_oldest_unsynced_seconds", now_ms, of, how="max", slots=slots, step=step)
    yield line_chart("oldest", "Oldest record that it lacks", "seconds", "Above a few seconds: as for the lag.", oldest, window)
    absent = history.rate("read_store_absent_values_total", now_ms, of, slots=slots, step=step)
    shares = [
        None if none is None and not many else (none or 0.0) / many if many else None
        for none, many in zip(absent, writes, strict=True)
    ]
    hint = "High: the source returns other groups or names than records have; `streams-app check` shows them."
    yield line_chart("nulls", "Written as NULL", "share", hint, [None if one is None else min(1.0, one) for one in shares], window)


def last_batch_ms(name: str, history: History, now_ms: int) -> int | None:
    """Return the time of the last sample that has new values; None if there is none within the last hour."""
    points = history.rate("read_store_writes_total", now_ms, {"store": name})
    newest = next((back for back, point in enumerate(reversed(points)) if point), None)
    return None if newest is None else (now_ms // EVERY_MS - newest) * EVERY_MS


def table_of(checkpoints: Mapping[TP, int], ends: Mapping[TP, tuple[int, int]]) -> CheckpointTable:
    """Return the table of the partitions that the store or Kafka has."""
    rows = []
    for tp in sorted({*checkpoints, *ends}):
        begin, end = ends.get(tp, (None, None))
        left = left_of({tp: ends[tp]}, checkpoints) if tp in ends else None
        rows.append(CheckpointRow(tp.topic, tp.partition, checkpoints.get(tp), begin, end, left))
    return CheckpointTable(rows, left_of(ends, checkpoints) if ends else None, max((row.left or 0 for row in rows), default=0))


def comparison_of(store: str, result: ComparisonResult, hidden: Hidden) -> Comparison | Missing:
    """Return the result of a comparison as it is shown."""
    done = result.done
    if done is None:
        return Missing("the comparison", result.fault, result.at_ms)
    rows = []
    for one in result.differences:
        stored = "-" if one.stored is None else cell_text(one.stored.value)[:MOST_CHARACTERS]
        current = escaped(one.why)[:MOST_CHARACTERS] if one.why else cell_text(one.change.value)[:MOST_CHARACTERS]
        texts = ("", "", "") if hidden.is_on else (shown(one.cell.name), stored, current)
        rows.append(ShownDifference(one.cell.fold, hidden.key(shown(one.cell.group_key)), texts[0], one.kind.value, *texts[1:]))
    by_share = sorted(done.nulls.items(), key=lambda one: (-one[1][0] / one[1][1], one[0]))
    nulls = [] if hidden.is_on else [
        NullShare(fold, shown(name), some, cells, some / cells) for (fold, name), (some, cells) in by_share[:SHOWN_NULLS]
    ]  # fmt: skip
    says = [line for line in summary(done, store) if not (hidden.is_on and line.startswith("NULL in the store"))]
    if done.behind:
        says.append(behind_text(done, store))
    state: State = "attention" if done.differences or done.behind else "ok"
    word = "differs" if done.differences else "behind" if done.behind else "equal"
    repairable = done.differences - result.kinds.get("refused", 0)
    return Comparison(
        result.at_ms, result.took_ms, state, word, says, rows, done.differences, result.kinds, repairable, nulls
    )  # fmt: skip


async def stored_groups(
    reader: ConsoleReader, fold: Fold, typed: str, members: Sequence[bytes], version: int | None
) -> list[GroupInStore | Missing]:
    """Return what each read store of a fold has of a group.

    Args:
        typed: Key of the group, as it is typed.
        members: The members that it may mean.
        version: Version of the record with which the values are compared.
    """
    hidden, found = Hidden(reader.settings), list[GroupInStore | Missing]()
    for store in reader.settings.read_stores:
        if fold.name in store.folds:
            key = ("stored group", store.name, fold.name, typed)
            ask = partial(cells_of_group, store, fold, members, SHOWN_CELLS + 1)
            cells = await reader.part(f"its group in read store {store.name}", key, ask)
            found.append(cells if isinstance(cells, Missing) else stored_group(store.name, cells, version, hidden))
    return found


def stored_group(store: str, cells: Sequence[GroupCell], version: int | None, hidden: Hidden) -> GroupInStore:
    """Return the values of a group as they are shown."""
    rows = [
        StoredCellText(
            "" if hidden.is_on else shown(one.name), "" if hidden.is_on else one.value[:MOST_CHARACTERS], one.version,
            "" if version is None or one.version < 0 else AGES[(one.version > version) - (one.version < version)],
        )
        for one in cells[:SHOWN_CELLS]
    ]  # fmt: skip
    return GroupInStore(store, store_path(store), rows, len(cells) <= SHOWN_CELLS)
