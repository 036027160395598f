"""What live views cost and how late they are, beside the commands of the source document and beside being pushed every change.

Run by ``make bench-live``. Each figure is printed with its goal.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import click

from benchmarks.live_hub import connections, stalled
from benchmarks.live_kafka import under_way
from benchmarks.live_redis import cost_of_redis
from benchmarks.live_rows import Row, Sizes
from benchmarks.processes import machine
from benchmarks.servers import Servers, started
from streams_app.errors import StreamsAppError
from tests.servers.cache import ServerUnavailableError


async def run(servers: Servers, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure all rows one after the other, and print each at once."""
    rows: list[Row] = []

    def show(found: list[Row]) -> None:
        for row in found:
            click.echo(row.text)
        rows.extend(found)

    show(await cost_of_redis(servers.redis_url, sizes))
    show(await connections(servers, folder, sizes))
    show([await stalled(servers, folder, sizes)])
    show(await under_way(servers, folder, sizes))
    return rows


@click.command()
@click.option("--kafka", default="embedded", show_default=True, help="embedded, apache (the version of the tests) or HOST:PORT.")
@click.option("--redis", "redis_choice", default="valkey", show_default=True, help="valkey (embedded), redis (version 7) or a URL.")
@click.option("--scale", type=click.FloatRange(0, min_open=True), default=1.0, help="Factor for all sizes; the goals apply to 1.")
def main(kafka: str, redis_choice: str, scale: float) -> None:
    """Measure the cost of live views, each figure with its goal. The exit code is 1 if a measurement fails. Empties its Redis."""
    try:
        with started(kafka, redis_choice) as servers, tempfile.TemporaryDirectory(prefix="bench-live-") as folder:
            click.echo(f"{servers.broker}, {servers.redis}, {machine()}")
            rows = asyncio.run(run(servers, Path(folder), Sizes.scaled(scale)))
    except (RuntimeError, TimeoutError, StreamsAppError, ServerUnavailableError, AssertionError) as error:
        raise click.ClickException(str(error) or repr(error)) from error
    missed = [row.name for row in rows if not row.is_reached]
    click.echo(f"{len(rows) - len(missed)} of {len(rows)} goals are reached" + (f"; missed: {'; '.join(missed)}" if missed else ""))


if __name__ == "__main__":
    main()
