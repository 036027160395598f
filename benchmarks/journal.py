"""What a journal takes of Redis and how fast it is, beside a plain stream a key and the layout of the source document.

``make bench-journal``. Each figure stands beside its goal.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from benchmarks.journal_kafka import caught_up, follower, speed
from benchmarks.journal_redis import cost_of_redis
from benchmarks.journal_rows import Sizes
from benchmarks.live_rows import Row
from benchmarks.processes import machine
from benchmarks.servers import Servers, started
from streams_app.errors import StreamsAppError
from tests.servers.cache import ServerUnavailableError

PARTS: Final = ("redis", "follower", "speed", "steady")


async def run(servers: Servers, folder: Path, sizes: Sizes, parts: Sequence[str]) -> list[Row]:
    """The rows of some parts, one measurement after the other; each is shown at once."""
    rows: list[Row] = []

    def show(found: list[Row]) -> None:
        for row in found:
            click.echo(row.text)
        rows.extend(found)

    if "redis" in parts:
        await cost_of_redis(servers, folder, sizes, show)
    if "follower" in parts:
        show([await follower(servers, folder, sizes)])
    if "speed" in parts:
        show(await speed(servers, folder, sizes))
    if "steady" in parts:
        show([await caught_up(servers, folder, sizes)])
    return rows


@click.command()
@click.option("--kafka", default="embedded", show_default=True, help="embedded, apache (as the tests have it) or HOST:PORT.")
@click.option("--redis", "redis_choice", default="valkey", show_default=True, help="valkey (embedded), redis (version 7) or a URL.")
@click.option("--scale", type=click.FloatRange(0, min_open=True), default=1.0, help="Of all sizes; goals are those of 1.")
@click.option("--only", multiple=True, type=click.Choice(PARTS), help="Only these parts; more than once for several.")
def main(kafka: str, redis_choice: str, scale: float, only: tuple[str, ...]) -> None:
    """What a journal costs, each figure with its goal. Exit code 1: something could not be measured. Empties that Redis."""
    try:
        with started(kafka, redis_choice) as servers, tempfile.TemporaryDirectory(prefix="bench-journal-") as folder:
            click.echo(f"{servers.broker}, {servers.redis}, {machine()}")
            rows = asyncio.run(run(servers, Path(folder), Sizes.scaled(scale), only or PARTS))
    except (RuntimeError, TimeoutError, StreamsAppError, ServerUnavailableError, AssertionError) as error:
        raise click.ClickException(str(error) or repr(error)) from error
    missed = [row.name for row in rows if not row.is_reached]
    click.echo(f"{len(rows) - len(missed)} of {len(rows)} goals are reached" + (f"; missed: {'; '.join(missed)}" if missed else ""))


if __name__ == "__main__":
    main()
