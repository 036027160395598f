"""`python -m benchmarks`, or `make bench ARGS="..."`; with `QUICK=1`, a short run measures only the ratio to bare reading."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks import scaling, states
from benchmarks.contest import Contest, contest
from benchmarks.due import due
from benchmarks.finding import Finding
from benchmarks.keeping import keeping
from benchmarks.loads import LOADS
from benchmarks.processes import machine
from benchmarks.report import as_json, best_ratio, broken_promises, faults, promised_ratios, show
from benchmarks.servers import Servers, started
from benchmarks.stream_processors.processors import DEFAULT_LOADS, PROCESSORS
from benchmarks.tuning_topic import replayed, tuned
from streams_app.errors import StreamsAppError
from tests.servers.cache import ROOT, ServerUnavailableError

IS_QUICK = os.environ.get("QUICK", "") not in ("", "0")


APART = ("keeping", "tune", "read_stores", "subscribers", "peers", "processors")
"""Options that measure something else: with one of them, loads of folding are measured only if they are named."""


def _loads(_: click.Context, __: click.Parameter, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in LOADS]:
        raise click.BadParameter(f"{', '.join(unknown)}: there are {', '.join(LOADS)}")
    return names


def _processors(_: click.Context, __: click.Parameter, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in PROCESSORS]:
        raise click.BadParameter(f"{', '.join(unknown)}: there are {', '.join(PROCESSORS)}")
    return names


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110})
@click.option(
    "--loads", callback=_loads, help="Separated by commas; default: all, or none with --tune, --stores, --subscribers, --peers."
)
@click.option("--runs", type=click.IntRange(1), default=3, help="Runs of each load, and of each of --subscribers.")
@click.option(
    "--scale",
    type=click.FloatRange(0, min_open=True),
    default=0.4 if IS_QUICK else 1.0,
    help="Factor for the numbers of events and groups.",
)
@click.option("--kafka", default="embedded", help="embedded, apache (the version of the tests) or HOST:PORT.")
@click.option("--bootstrap", default=None, metavar="HOST:PORT", help="The same as --kafka HOST:PORT.")
@click.option("--redis", "redis_choice", default="valkey", help="valkey (embedded), redis (version 7) or a URL.")
@click.option("--open/--no-open", "open_groups", default=None, help="Also measure the Redis bytes of each open group.")
@click.option("--idle", is_flag=True, help="Also measure 100 000 open groups without input for 60 s.")
@click.option("--live", is_flag=True, help="Also measure the emission delay of a steady stream for 60 s.")
@click.option("--rate", type=click.IntRange(1), default=20_000, help="Events/s of --live; half of the maximum is most informative.")
@click.option("--due", "due_at_once", is_flag=True, help="Also measure 200 000 groups that are due at the same instant.")
@click.option("--workers", is_flag=True, help="Also measure hot and wide in 8 partitions with one worker and with two.")
@click.option("--growth", is_flag=True, help="Also measure the cost of an event with 10 000 … 2 000 000 open groups.")
@click.option("--memory", is_flag=True, help="Also measure memory after 1, 5 and 10 million events, and with 1 and 8 partitions.")
@click.option(
    "--keep", "keeping", is_flag=True, help="Also measure the hot load with each kind of keep: names, last, aggregates, events."
)
@click.option(
    "--tune", is_flag=True, help="Also measure `streams-app tune` on a topic of ten million events, and its memory by load."
)
@click.option("--stores", "read_stores", is_flag=True, help="Also measure how much folding and batches save each read store.")
@click.option("--subscribers", is_flag=True, help="Also measure the call rate of subscribers, and the cost of an idle one.")
@click.option("--only", default="again,ordered,napping,idle", help="Names for --subscribers; also once, never_twice.")
@click.option("--peers", is_flag=True, help="Also measure the same functions with FastStream, Taskiq, Dramatiq and Celery.")
@click.option("--rivals", default="", help="Prefixes of names for --peers, separated by commas.")
@click.option(
    "--processors",
    callback=_processors,
    default="",
    help=f"Only measure sessions beside these, separated by commas: {', '.join(PROCESSORS)}.",
)
@click.option("--limit", type=click.FloatRange(0, min_open=True), default=60.0, help="Seconds for each run of --processors.")
@click.option("--kill/--no-kill", default=True, help="Whether --peers also counts the events that a SIGKILL loses and repeats.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), default=None, help="File for all runs as JSON."
)
@click.option(
    "--check-ratio", type=float, metavar="FACTOR", help="Exit with 1 if a best ratio is below FACTOR times that in the README."
)
def main(
    loads: list[str] | None,
    runs: int,
    scale: float,
    kafka: str,
    bootstrap: str | None,
    redis_choice: str,
    json_path: Path | None,
    check_ratio: float | None,
    **extra: Any,
) -> None:
    """Measure this project side by side with bare reading and with a simple design on stock Faust.

    With QUICK=1 in the environment, measure only bare reading and this project, at a small scale. The exit code is 1 if records are
    wrong, or if a ratio is below the required one.
    """
    is_apart = any(extra[name] for name in APART)
    if extra["open_groups"] is None:
        extra["open_groups"] = not (IS_QUICK or is_apart)
    if extra["processors"]:
        # They are measured with these loads, beside bare reading and this project.
        extra["raced"], loads = list(DEFAULT_LOADS) if loads is None else loads, []
    if loads is None:
        loads = [] if is_apart else ["hot", "wide"] if IS_QUICK else list(LOADS)
    promised = _promised(loads, check_ratio)
    try:
        contests, findings, head = asyncio.run(_measure(loads, runs, scale, (bootstrap or kafka, redis_choice), extra))
    except (RuntimeError, TimeoutError, StreamsAppError, ServerUnavailableError, AssertionError) as error:
        raise click.ClickException(str(error) or repr(error)) from error
    show(contests, findings, head)
    if json_path is not None:
        about: dict[str, Any] = {"about": head, "scale": scale, "runs": runs}
        json_path.write_text(json.dumps(as_json(contests, findings, about), indent=1) + "\n", "utf-8")
    broken: list[str] = []
    if check_ratio is not None:
        for name, reached in {contest.load.name: best_ratio(contest) for contest in contests}.items():
            click.echo(f"{name}: ratio of the best runs to bare {reached:.3f}, in the README {promised.get(name, 'none')}")
        broken = broken_promises(contests, promised, check_ratio)
        for line in broken:
            click.echo(f"WRONG: {line}", err=True)
    sys.exit(1 if broken or faults(contests, findings) else 0)


def _promised(loads: list[str], check_ratio: float | None) -> dict[str, float]:
    """Return the ratios in the README. Called before the measurement: if they cannot be read, the check must fail, not pass."""
    if check_ratio is None:
        return {}
    if not loads:
        raise click.UsageError("--check-ratio needs loads")
    try:
        return promised_ratios(ROOT / "README.md")
    except ValueError as error:
        raise click.ClickException(f"ratios cannot be checked: {error}") from error


async def _measure(
    loads: list[str], runs: int, scale: float, choice: tuple[str, str], extra: dict[str, Any]
) -> tuple[list[Contest], list[Finding], str]:
    with started(*choice) as servers, tempfile.TemporaryDirectory(prefix="streams-app-bench-") as name:
        head = f"{servers.broker}; {servers.redis}; {machine()}; scale {scale}, {runs} runs"
        _print_line(head)
        contests = [await contest(load, scale, runs, servers, Path(name), _print_line, short=IS_QUICK) for load in loads]
        findings = await _findings(servers, Path(name), scale, runs, extra)
    return contests, findings, head


async def _findings(servers: Servers, folder: Path, scale: float, runs: int, extra: dict[str, Any]) -> list[Finding]:
    findings: list[Finding] = []
    if extra["open_groups"] or extra["idle"]:
        _print_line("open groups: Redis bytes of each" + (", and 60 s without input" if extra["idle"] else ""))
        findings += await states.waiting_groups(servers, folder, scale, idle=extra["idle"])
    if extra["live"]:
        _print_line(f"live: a steady {extra['rate']:,} events/s")
        findings.append(await states.live(servers, folder, scale, extra["rate"]))
    if extra["due_at_once"]:
        _print_line("due: many groups at once")
        findings.append(await due(servers, folder, scale))
    if extra["workers"]:
        _print_line("workers: one and two")
        findings += await scaling.workers(servers, folder, scale)
    if extra["growth"]:
        _print_line("growth: more and more open groups")
        findings += await scaling.growth(servers, folder, scale)
    for partitions, millions in states.MEMORY if extra["memory"] else ():
        _print_line(f"memory: {partitions} partitions, {millions[-1]} times the hot load")
        findings.append(await states.memory(servers, folder, scale, millions, partitions))
    if extra["keeping"]:
        _print_line("keep: the hot load with each kind of keep")
        findings += await keeping(servers, folder, scale, runs, _print_line)
    if extra["tune"]:
        _print_line("tune: a topic of ten million events, then each load of benchmarks/tuning.py")
        findings += [await tuned(servers, folder, scale), *await replayed(scale)]
    if extra["read_stores"]:
        from benchmarks.stores import stores  # needs the drivers of all stores

        _print_line("stores: writes and records/s of SQLite, PostgreSQL and OpenSearch")
        findings += await stores(scale)
    return findings + await _calls(servers, folder, scale, runs, extra)


async def _calls(servers: Servers, folder: Path, scale: float, runs: int, extra: dict[str, Any]) -> list[Finding]:
    findings: list[Finding] = []
    if extra["subscribers"]:
        from benchmarks.subscribers import subscribers  # its catalogue is made when it is imported

        _print_line("subscribers: each beside awaiting its function alone")
        findings += await subscribers(servers, folder, scale, runs, extra["only"].split(","), _print_line)
    if extra["peers"]:
        from benchmarks.peers.rivals import rivals  # as above

        _print_line("peers: the same functions called by others")
        names = [name for name in extra["rivals"].split(",") if name]
        findings += await rivals(servers, folder, scale, names, _print_line, kills=extra["kill"])
    if extra["processors"]:
        from benchmarks.stream_processors.race import processors  # as above

        _print_line("processors: the same sessions folded by others")
        arguments = extra["processors"], extra["raced"], extra["limit"]
        findings += await processors(servers, folder, scale, runs, *arguments, _print_line)
    return findings


_started = time.monotonic()


def _print_line(line: str) -> None:
    """Print progress to stderr, because stdout is for the result."""
    click.echo(f"{time.monotonic() - _started:6.1f} s  {line}", err=True)


if __name__ == "__main__":
    main()
