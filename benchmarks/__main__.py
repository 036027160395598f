"""`python -m benchmarks`, or `make bench ARGS="..."`; `QUICK=1` for a short one."""

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

from benchmarks import states
from benchmarks.contest import Contest, contest
from benchmarks.loads import LOADS
from benchmarks.processes import machine
from benchmarks.report import as_json, broken_promises, faults, promised_ratios, show
from benchmarks.servers import Servers, started
from benchmarks.states import Finding
from streams_app.errors import StreamsAppError
from tests.servers.cache import ROOT, ServerUnavailableError

IS_QUICK = os.environ.get("QUICK", "") not in ("", "0")


def _loads(_: click.Context, __: click.Parameter, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in LOADS]:
        raise click.BadParameter(f"{', '.join(unknown)}: there are {', '.join(LOADS)}")
    return names


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110})
@click.option("--loads", callback=_loads, default="hot,wide" if IS_QUICK else ",".join(LOADS), help="With commas; '' for none.")
@click.option("--runs", type=click.IntRange(1), default=1 if IS_QUICK else 3, help="Of each load.")
@click.option("--scale", type=click.FloatRange(0, min_open=True), default=0.2 if IS_QUICK else 1.0, help="Of events and groups.")
@click.option("--kafka", default="embedded", help="embedded, apache (as the tests have it) or HOST:PORT.")
@click.option("--bootstrap", default=None, metavar="HOST:PORT", help="The same as --kafka HOST:PORT.")
@click.option("--redis", "redis_choice", default="valkey", help="valkey (embedded), redis (version 7) or a URL.")
@click.option("--live", is_flag=True, help="Also a steady 20 000 events/s for 60 s.")
@click.option("--idle", is_flag=True, help="Also 100 000 open groups and no input for 60 s.")
@click.option("--memory", is_flag=True, help="Also memory after one and after five million events.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), default=None, help="All runs, for machines.")
@click.option("--check-ratio", type=float, default=None, metavar="FACTOR", help="Exit 1 below FACTOR x the README's ratio to bare.")
def main(
    loads: list[str],
    runs: int,
    scale: float,
    kafka: str,
    bootstrap: str | None,
    redis_choice: str,
    live: bool,
    idle: bool,
    memory: bool,
    json_path: Path | None,
    check_ratio: float | None,
) -> None:
    """Measure this project side by side with bare reading and with the article's design on stock Faust.

    Exit code 1: wrong records came out, or a ratio is below what is asked for.
    """
    promised = None
    if check_ratio is not None:
        promised = promised_ratios(ROOT / "README.md")
    extra = {"live": live, "idle": idle, "memory": memory}
    try:
        contests, findings, head = asyncio.run(_measure(loads, runs, scale, (bootstrap or kafka, redis_choice), extra))
    except (RuntimeError, StreamsAppError, ServerUnavailableError, AssertionError) as error:
        raise click.ClickException(str(error)) from error
    show(contests, findings, head)
    if json_path is not None:
        about: dict[str, Any] = {"about": head, "scale": scale, "runs": runs}
        json_path.write_text(json.dumps(as_json(contests, findings, about), indent=1) + "\n", "utf-8")
    failed = bool(faults(contests, findings))
    if check_ratio is not None:
        if promised is None:
            click.echo("ratios not checked: README.md has no table between <!-- benchmark --> markers")
        else:
            broken = broken_promises(contests, promised, check_ratio)
            for line in broken:
                click.echo(line, err=True)
            failed = failed or bool(broken)
    sys.exit(1 if failed else 0)


async def _measure(
    loads: list[str], runs: int, scale: float, choice: tuple[str, str], extra: dict[str, bool]
) -> tuple[list[Contest], list[Finding], str]:
    with started(*choice) as servers, tempfile.TemporaryDirectory(prefix="streams-app-bench-") as name:
        head = f"{servers.broker}; {servers.redis}; {machine()}; scale {scale}, {runs} runs"
        _say(head)
        contests = [await contest(load, scale, runs, servers, Path(name), _say) for load in loads]
        findings = await _findings(servers, Path(name), scale, extra)
    return contests, findings, head


async def _findings(servers: Servers, folder: Path, scale: float, extra: dict[str, bool]) -> list[Finding]:
    _say("open groups: Redis bytes of each" + (", and 60 s without input" if extra["idle"] else ""))
    findings = await states.waiting_groups(servers, folder, scale, idle=extra["idle"])
    if extra["live"]:
        _say("live: a steady stream")
        findings.append(await states.live(servers, folder, scale))
    if extra["memory"]:
        _say("memory: five times the hot load")
        findings.append(await states.memory(servers, folder, scale))
    return findings


_started = time.monotonic()


def _say(line: str) -> None:
    """Progress goes to stderr: stdout is for the result."""
    click.echo(f"{time.monotonic() - _started:6.1f} s  {line}", err=True)


if __name__ == "__main__":
    main()
