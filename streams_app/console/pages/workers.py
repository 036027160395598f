"""The page of the workers: how each is and since when, what it works on, and its last hour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from streams_app.console.pages.model import Chart, Problem, Series, State, Unit, window_of
from streams_app.console.pages.paths import WORKERS_PATH
from streams_app.console.pages.problems import problems_of
from streams_app.console.pages.rendering import render
from streams_app.console.reading.asking import Asked
from streams_app.console.reading.console_reader import ConsoleReader, Missing, ServerState
from streams_app.console.reading.history import History
from streams_app.console.reading.samples import Samples
from streams_app.folding.store.replies import RESYNC_CAUSES
from streams_app.requirements.declarations import Declarations

MOST_CHARTS: Final = 12
"""Maximum number of workers whose charts are shown."""

WHY: Final = {
    "joined": "the worker started",
    "gained": "another member left, or topics have more partitions",
    "lost": "another member joined",
    "moved": "members joined or left, and the partitions were distributed anew",
    "same": "a member joined or left, and nothing changed for this worker",
}
"""What leads to each change by a rebalance."""

OutageKind = Literal["not ready", "away", "refuses writes"]


class Outage(msgspec.Struct, frozen=True):
    """A cause that holds now.

    Attributes:
        since_ms: Time of the first sample of the console that has it; None: no sample has it yet.
        is_older: Whether it may be older, because the samples do not go back further.
    """

    kind: OutageKind
    cause: str
    since_ms: int | None
    is_older: bool


class Work(msgspec.Struct, frozen=True):
    """What a worker does for one fold or subscriber, in its own partitions."""

    kind: Literal["fold", "subscriber"]
    name: str
    count: float


class Resync(msgspec.Struct, frozen=True):
    """How often a worker has claimed partitions again for one cause, since it started."""

    about: str
    cause: str
    what: str
    times: int


class AssignedPartitions(msgspec.Struct, frozen=True):
    """The partitions of a consumer group that a worker has, and the last rebalance of the group.

    Attributes:
        topics: Number of partitions by topic.
        last_ms: Time of the last rebalance; None: unknown.
        change: What it changed for the worker; empty if unknown.
        why: What leads to such a change.
        times: Rebalances since the worker started, without the first.
    """

    group: str
    partitions: int
    topics: dict[str, int]
    last_ms: int | None
    change: str
    why: str
    times: int


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker in the list of the overview."""

    url: str
    state: State
    word: str
    version: str
    started_ms: int | None
    memory_bytes: float | None
    cpu_share: float | None
    fault: str
    since_ms: int


class WorkerPart(msgspec.Struct, frozen=True):
    """A worker.

    Attributes:
        says: The reasons and remarks of its ``/health/ready``, or why it does not answer.
        away_since_ms: Since when it does not answer; None: it does.
    """

    url: str
    state: State
    word: str
    version: str
    started_ms: int | None
    memory_bytes: float | None
    cpu_share: float | None
    away_since_ms: int | None
    says: list[str]
    outages: list[Outage]
    work: list[Work]
    assigned: list[AssignedPartitions]
    resyncs: list[Resync]
    charts: list[Chart]


class WorkersPage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        versions: Versions of the workers that answer; several while they are replaced.
    """

    problems: list[Problem]
    workers: list[WorkerPart]
    versions: list[str]
    missing: list[Missing]
    since_ms: int
    now_ms: int


def html(model: WorkersPage) -> str:
    """Render the page."""
    return render("workers.html", model=model)


async def collect(reader: ConsoleReader, declarations: Declarations, _: Asked) -> WorkersPage:
    """Collect the page from the workers and the history."""
    states, missing = await reader.workers_part()
    now_ms = reader.clock.now_ms()
    problems = [
        one
        for one in problems_of(declarations, states, reader.history, now_ms)
        if one.link == WORKERS_PATH or one.alert == "NoWorker"
    ]
    return page_of(states, reader.history, now_ms, problems, missing)


def row_of(worker: ServerState, now_ms: int) -> WorkerRow:
    """Return the row of a worker in the list."""
    samples = worker.samples
    if worker.fault:
        return WorkerRow(worker.url, "trouble", "away", "", None, None, None, f"it {worker.fault}", worker.since_ms)
    is_ready, remarks = worker.health.is_ready, worker.health.remarks
    word = "not ready" if not is_ready else "ready, with a remark" if remarks else "ready"
    state: State = "trouble" if not is_ready else "attention" if remarks else "ok"
    fault = "; ".join((*worker.health.reasons, *remarks))
    started = samples.total("process_start_time_seconds")
    return WorkerRow(
        worker.url, state, word, samples.label("build_info", "version"), None if started is None else int(started * 1_000),
        samples.total("process_resident_memory_bytes"), _cpu(samples, started, now_ms), fault,
        worker.since_ms,
    )  # fmt: skip


def _cpu(samples: Samples, started: float | None, now_ms: int) -> float | None:
    used = samples.total("process_cpu_seconds_total")
    if used is None or started is None or now_ms / 1_000 <= started:
        return None
    return used / (now_ms / 1_000 - started)


def page_of(
    workers: Sequence[ServerState], history: History, now_ms: int, problems: list[Problem], missing: list[Missing]
) -> WorkersPage:
    """Return the page from what the workers answer and the history."""
    parts = [part_of(worker, history, now_ms, has_charts=number < MOST_CHARTS) for number, worker in enumerate(workers)]
    versions = sorted({part.version for part in parts if part.version})
    return WorkersPage(problems, parts, versions, missing, history.since_ms(now_ms), now_ms)


def part_of(worker: ServerState, history: History, now_ms: int, *, has_charts: bool) -> WorkerPart:
    """Return what is shown of a worker."""
    row = row_of(worker, now_ms)
    says = [row.fault] if worker.fault else [*worker.health.reasons, *worker.health.remarks]
    return WorkerPart(
        row.url, row.state, row.word, row.version, row.started_ms, row.memory_bytes, row.cpu_share,
        worker.since_ms if worker.fault else None, says, list(outages_of(worker, history, now_ms)), list(work_of(worker.samples)),
        list(assigned_to(worker.samples)), list(resyncs_of(worker.samples)),
        list(charts_of_worker(worker.url, history, now_ms)) if has_charts else [],
    )  # fmt: skip


def outages_of(worker: ServerState, history: History, now_ms: int) -> Iterator[Outage]:
    """Yield the causes that hold now, by the metrics of a worker."""
    found: tuple[tuple[OutageKind, str, str, float], ...] = (
        ("not ready", "not_ready", "cause", 1.0),
        ("away", "up", "component", 0.0),
        ("refuses writes", "redis_refuses_writes", "cause", 1.0),
    )
    for kind, metric, label, value in found:
        for name, present in worker.samples.by(metric, label).items():
            if present == value:
                since_ms = history.holds_since(metric, worker.url, now_ms, {label: name})
                yield Outage(kind, name, since_ms, since_ms is not None and since_ms <= history.since_ms(now_ms))


def work_of(samples: Samples) -> Iterator[Work]:
    """Yield the open groups of each fold and the running attempts of each subscriber, in the partitions of a worker."""
    for name, count in sorted(samples.by("open_groups", "fold").items()):
        yield Work("fold", name, count)
    for name, count in sorted(samples.by("subscriber_running_events", "subscriber").items()):
        yield Work("subscriber", name, count)


def assigned_to(samples: Samples) -> Iterator[AssignedPartitions]:
    """Yield the partitions of each consumer group of a worker, by the name of the group."""
    for group, partitions in sorted(samples.by("assigned_partitions", "consumer_group").items()):
        topics = {
            topic: int(count) for topic, count in sorted(samples.by("assigned_partitions", "topic", consumer_group=group).items())
        }
        times = samples.by("last_rebalance_timestamp_seconds", "change", consumer_group=group)
        change = max(times, key=lambda one: times[one], default="")
        counts = samples.by("rebalances_total", "change", consumer_group=group)
        yield AssignedPartitions(
            group, int(partitions), topics, round(1_000 * times[change]) if change else None, change, WHY.get(change, ""),
            int(sum(counts.values()) - counts.get("joined", 0)),
        )  # fmt: skip


def resyncs_of(samples: Samples) -> Iterator[Resync]:
    """Yield why partitions were claimed again, the most frequent cause first."""
    found = [
        Resync(about, cause, RESYNC_CAUSES.get(cause, ""), int(times))
        for metric, label in (("resyncs_total", "fold"), ("subscriber_resyncs_total", "subscriber"))
        for about in samples.by(metric, label)
        for cause, times in samples.by(metric, "cause", **{label: about}).items()
        if times
    ]
    yield from sorted(found, key=lambda one: (-one.times, one.about, one.cause))


def charts_of_worker(url: str, history: History, now_ms: int) -> Iterator[Chart]:
    """Yield memory, CPU and events of a worker."""
    window = window_of(history, now_ms)
    slots, step = window.slots, window.step

    def chart(key: str, title: str, unit: Unit, hint: str, points: Sequence[float | None]) -> Chart:
        now = next((point for point in reversed(points) if point is not None), None)
        return Chart(f"{key}-{url}", title, unit, [Series(title, list(points))], window.from_ms, window.step_ms, now, hint)

    memory = history.gauge("process_resident_memory_bytes", now_ms, slots=slots, step=step, worker=url)
    yield chart(
        "memory", "Memory", "bytes", "Resident. Rising without end: a function of a subscriber keeps what it has seen.", memory
    )
    cpu = history.rate("process_cpu_seconds_total", now_ms, slots=slots, step=step, worker=url)
    yield chart("cpu", "CPU", "share", "Of one core. Near 100% while lag rises: add workers.", cpu)
    events = history.rate("events_folded_total", now_ms, slots=slots, step=step, worker=url)
    yield chart("events", "Events folded", "events/s", "Of all folds.", events)
