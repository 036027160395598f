"""``streams-app read-store fill``: groups that no record names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from streams_app.cli.options import with_settings
from streams_app.errors import ConfigurationError
from streams_app.formatting import counted
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.operations.fill import Filled
    from streams_app.settings import ReadStoreSettings

MOST_SHOWN: Final = 20


@click.command(name="fill", short_help="Write groups that no record names, with the values of now.")
@with_settings
@click.argument("file", type=click.File("rb"))
@click.option("--store", metavar="NAME", help="Which one of [read_stores.NAME]; optional if there is only one.")
@click.option("--fold", metavar="NAME", help="Fold of the groups; optional if the store has only one.")
def fill(settings: Settings, file: BinaryIO, store: str | None, fold: str | None) -> int:
    """Write groups that no record names into a read store, with the current values of its source.

    A new store gets what its topics hold. Groups that have not changed since the fold began are in no topic: name them in FILE
    (- is stdin), a JSON object a line, with the group fields and the changed names as in a folded record. What the store has
    already stays, and every record is newer, so workers may run, and so may this once more.

    \b
    Exit codes:
      0   every line is in the store
      1   some lines are not, each is named; or the settings are wrong
      75  the store or its source does not answer
    """  # noqa: D301  # \b is for click: keep these lines as they are
    declared = settings.read_store(store)
    refused: list[str] = []
    done = asyncio.run(_run(settings, declared, fold, file, lambda number, why: refused.append(f"line {number}: {why}")))
    for line in refused[:MOST_SHOWN]:
        click.echo(line, err=True)
    if len(refused) > MOST_SHOWN:
        click.echo(f"and {len(refused) - MOST_SHOWN} more", err=True)
    click.echo(f"{counted(done.lines - done.refused, 'line')} of {done.lines} in read store {declared.name}")
    return ConfigurationError.exit_code if done.refused else 0


async def _run(
    settings: Settings,
    declared: ReadStoreSettings,
    fold: str | None,
    lines: Iterable[bytes],
    on_refused: Callable[[int, str], None],
) -> Filled:
    from streams_app.cli.showing import showing
    from streams_app.clock import SystemClock
    from streams_app.operations.fill import Fill

    clock = SystemClock()
    with showing(clock, "filling") as show:
        return await Fill(settings, declared, fold, clock, on_refused=on_refused, on_progress=show).run(lines)
