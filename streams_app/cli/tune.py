"""``streams-app tune``: recommends a quiet period for a fold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from streams_app.cli.groups import one_fold
from streams_app.cli.options import DurationsType, DurationType, MomentType, ShareType, with_settings
from streams_app.clock import Clock, SystemClock
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.gc_tuning import search_cycles_rarely
from streams_app.quiet_period import QuietPeriod
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.cli.tune_view import ReadProgress
    from streams_app.tuning.columns import Columns
    from streams_app.tuning.points import Curve
    from streams_app.tuning.read_counts import ReadCounts


@click.command(name="tune")
@with_settings
@click.option("--fold", metavar="NAME", help="Name of the fold; optional if there is only one.")
@click.option(
    "--from",
    "begin",
    type=MomentType(),
    metavar="WHEN",
    default="-24h",
    show_default=True,
    help="Start in the source: a duration ago, an ISO time, ms since 1970, or earliest. With --file: by the times in the file; "
    "default: its first line.",
)
@click.option("--to", "end", type=MomentType(), metavar="WHEN", help="End, in the same form. Default: end of the topic or file.")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read events from JSON lines (also .gz and .zst) instead of the source; - is standard input. Needs no Kafka.",
)
@click.option(
    "--time",
    "time",
    metavar="FIELD",
    help="With --file: the field with the time of an event; a dotted path. A number below 100 000 000 000 is seconds since 1970, "
    "a larger one milliseconds; a text is ISO 8601, in UTC if it has no time zone.",
)
@click.option("--key", metavar="FIELD", help="With --file, for a fold by @key: the field that replaces the record key.")
@click.option("--live", is_flag=True, help="Use the gaps that running workers count, without reading the topic: takes a moment.")
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="With --live: a worker, as in http://host:8080; once for each. Default: the one on this machine.",
)
@click.option(
    "--journal",
    metavar="NAME",
    help="Read a journal of the source instead of the source, by default all its days. Needs no Kafka.",
)
@click.option("--windows", type=DurationsType(), metavar="X,X,...", help="Candidates. Default: some 30 on a logarithmic scale.")
@click.option(
    "--target-ratio",
    type=ShareType(),
    metavar="R",
    help="Recommend the shortest X with this folding ratio, as in 0.95.",
)
@click.option(
    "--max-latency", type=DurationType(), metavar="TIME", help="Recommend the X with the highest folding ratio within this latency."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def command(
    settings: Settings,
    fold: str | None,
    begin: Callable[[int], int | None],
    end: Callable[[int], int | None] | None,
    file: Path | None,
    live: bool,
    urls: tuple[str, ...],
    windows: tuple[int, ...] | None,
    target_ratio: float | None,
    max_latency: int | None,
    as_json: bool,
    time: str | None,
    key: str | None,
    journal: str | None,
) -> int:
    """Recommend a quiet period.

    Replays past events of a fold with a virtual clock, once for each candidate X of the quiet period. For each X it shows records,
    folding ratio, latency from an event to its record, and the peak of open groups and Redis memory. It recommends the knee of the
    curve, or the best X for --target-ratio or --max-latency. It changes no data, joins no consumer group, and does not affect
    workers.

    \b
        streams-app tune                                  the source, the last 24 hours
        streams-app tune --from -7d --target-ratio 0.95   the shortest X that folds 95 %
        streams-app tune --max-latency 20m                the most folded within this latency
        streams-app tune --live                           the counters of the worker on this machine
        streams-app tune --journal accounts               all days of a journal
        streams-app tune --file events.jsonl.gz --time created_at
        kcat -C -t my-topic -e | streams-app tune --file - --time ts --windows 10s,1m,15m

    The virtual clock of a partition follows the record timestamps; an older timestamp counts as the newest one before it. All other
    bounds of the fold, close_when and leading are those of the settings. Above ten million events the result is
    based on a sample of the groups, and its error is shown.

    If events decide the quiet period, X stands for the default, up to at_most. Events with their own quiet period keep it.

    If the quiet period sets itself, a row shows what it gives if it has learned nothing before, beside the fixed candidates. --live
    shows only the fixed ones.

    There is no recommendation if a tenth of the events is rejected, older than an earlier event or in the future, or if times look
    like dates or day numbers. The output then shows the reason, and the exit code is 1.
    """  # noqa: D301  # \b is for click: keep these lines as they are
    # numpy takes a while to import, and `--help` should not.
    from streams_app.cli.tune_live import curve_of_workers
    from streams_app.cli.tune_view import show
    from streams_app.formatting import json_line
    from streams_app.tuning.candidates import recommendation_for

    of, clock = one_fold(settings, fold), SystemClock()
    _check_file_options(of, file, {"time": time, "key": key})
    _check_live_options(urls, is_live=live)
    _check_journal_option(settings, of, journal, file)
    doubt_of: Callable[[int], str | None] = lambda _: None  # noqa: E731  # counters of workers have no invalid times
    if live:
        curve = curve_of_workers(settings, of, urls, windows, clock.now_ms())
    else:
        curve, doubt_of = _replayed(settings, of, (begin, end), file, windows, clock, time=time, key=key, journal=journal)
    recommended, doubt = recommendation_for(of, curve, doubt_of, target_ratio=target_ratio, max_latency_ms=max_latency)
    if as_json:
        advice = None if doubt else {"quiet_ms": recommended.quiet_ms, "why": recommended.why}
        click.echo(json_line({**curve.as_json(), "recommended": advice, "doubt": doubt}))
    else:
        configured_ms = of.default_quiet_period_ms if of.auto_quiet is None else 0  # no candidate
        show(curve, recommended, configured_ms, is_default=isinstance(of.quiet_period, QuietPeriod) and not live)
    return 1 if doubt else 0


def _replayed(
    settings: Settings,
    of: Fold,
    when: tuple[Callable[[int], int | None], Callable[[int], int | None] | None],
    file: Path | None,
    windows: tuple[int, ...] | None,
    clock: Clock,
    *,
    time: str | None,
    key: str | None,
    journal: str | None,
) -> tuple[Curve, Callable[[int], str | None]]:
    """Read the events of a topic, journal or file; compute the records, latency and memory that each candidate gives for them.

    Args:
        when: Functions that return the beginning and the end of the range from the current time; None: the range has no end.
        windows: Candidates for the quiet period, in ms; None: they are derived from the events.

    Returns:
        The curve, and a function that takes a quiet period in ms. The function returns why the times of the events do not allow
        this quiet period to be recommended, or None if they do.

    Raises:
        ConfigurationError: No event can be replayed; the message has advice.
    """
    from streams_app.cli.tune_view import read_progress, report_unused
    from streams_app.formatting import escaped
    from streams_app.tuning.candidates import columns_for, curve_of_events, read_source
    from streams_app.tuning.columns import fold_to_read
    from streams_app.tuning.read_counts import ReadCounts
    from streams_app.tuning.timestamps import timestamp_faults

    now_ms = clock.now_ms()
    columns = columns_for(of, now_ms)
    reading = fold_to_read(of)
    tally = ReadCounts()
    unit = "lines" if file else "events"
    search_cycles_rarely()
    with read_progress(clock, unit) as progress:
        begin, end = when
        range_ms = begin(now_ms), end(now_ms) if end else None
        if file is not None:
            if not _is_given("begin"):  # the default of one day is for topics, which may be long
                range_ms = None, range_ms[1]
            advice = _read_file(settings, reading, file, columns, tally, progress, range_ms, time=time, key=key)
        elif journal is not None:
            if not _is_given("begin"):  # by default all days of the journal
                range_ms = None, range_ms[1]
            advice = _read_journal(settings, reading, journal, columns, tally, progress, range_ms)
        else:
            advice = read_source(settings, reading, columns, tally, progress.reading, range_ms)
        curve = curve_of_events(settings.app_id, of, columns, windows, progress.replaying) if columns.events else None
    report_unused(tally, unit)
    if curve is None:
        raise ConfigurationError([escaped(advice)])
    return curve, partial(timestamp_faults, columns, tally, unit)


def _check_live_options(urls: Sequence[str], *, is_live: bool) -> None:
    if urls and not is_live:
        raise click.UsageError("--url requires --live: a topic is read from Kafka, not from a worker")
    for name, option in (("begin", "--from"), ("end", "--to"), ("file", "--file"), ("journal", "--journal")):
        if is_live and _is_given(name):
            raise click.UsageError(f"{option} cannot be combined with --live: workers count since they started")


def _check_journal_option(settings: Settings, fold: Fold, journal: str | None, file: Path | None) -> None:
    from streams_app.tuning.journal import check_journal

    if journal is None:
        return
    if file is not None:
        raise click.UsageError("--journal or --file, not both")
    check_journal(settings.journal(journal), fold)


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _check_file_options(fold: Fold, file: Path | None, of_file: dict[str, str | None]) -> None:
    for name, value in of_file.items():
        if value is not None and file is None:
            raise click.UsageError(f"--{name} requires --file: the records of a topic have a time and a key of their own")
    if file is not None and of_file["time"] is None:
        raise click.UsageError("--file needs --time FIELD: the field with the time of an event")
    if file is not None and fold.group_key == "@key" and of_file["key"] is None:
        raise click.UsageError(f"--file needs --key FIELD: fold {fold.name} is by the record key, and lines have none")


def _read_journal(
    settings: Settings,
    fold: Fold,
    journal: str,
    columns: Columns,
    tally: ReadCounts,
    progress: ReadProgress,
    range_ms: tuple[int | None, int | None],
) -> str:
    """Read a journal into ``columns``; return as :func:`.read_source`."""
    from streams_app.tuning.journal import read_journal

    from_ms, to_ms = range_ms
    reading = read_journal(
        settings, fold, settings.journal(journal), columns, tally, from_ms=from_ms, to_ms=to_ms, on_progress=progress.reading
    )
    asyncio.run(reading)
    if tally.read:
        return f"none of the {tally.read:,} events of journal {journal} can be folded by {fold.name}: see the reasons above"
    return f"there is no event in journal {journal} in that range: see streams-app journal list, and try an earlier --from"


def _read_file(
    settings: Settings,
    fold: Fold,
    file: Path,
    columns: Columns,
    tally: ReadCounts,
    progress: ReadProgress,
    range_ms: tuple[int | None, int | None],
    *,
    time: str | None,
    key: str | None,
) -> str:
    """Read a file into ``columns``; return as :func:`.read_source`."""
    from streams_app.tuning.file import LineReader
    from streams_app.tuning.input_file import size_of

    assert time is not None  # checked by _check_file_options
    tally.total = size_of(file)
    from_ms, to_ms = range_ms
    reader = LineReader(fold, settings.limits, columns, tally, time=time, key=key, from_ms=from_ms, to_ms=to_ms)
    reader.read(file, progress.reading)
    return f"--file {file}: {reader.advice()}"
