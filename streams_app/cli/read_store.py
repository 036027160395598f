"""``streams-app read-store``: creates a read store, fills it, compares it with its value source, and rebuilds it."""

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
    from streams_app.operations.fill import FillResult
    from streams_app.settings import ReadStoreSettings
from typing import TYPE_CHECKING, Any

from streams_app.errors import BehindError

if TYPE_CHECKING:
    from streams_app.cli.tables import Column
    from streams_app.operations.verify_result import VerifyResult
    from streams_app.read_store.core.comparing import Difference
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams_app.operations.rebuild import RebuildResult
    from streams_app.settings import ReadStoreSettings


@click.group(name="read-store")
def command() -> None:
    """Create, fill, verify and rebuild read stores."""


@command.command(name="init")
@with_settings
@click.option("--store", metavar="NAME", help="Which one of [read_stores.NAME]; optional if there is only one.")
def init(settings: Settings, store: str | None) -> None:
    """Create the missing tables of a read store.

    Until the tables exist, workers fold but do not sync the store.
    """
    from streams_app.operations.read_store_status import create_tables

    for line in asyncio.run(create_tables(settings.read_store(store))):
        click.echo(line)


MAX_SHOWN: Final = 20


@command.command(name="fill", short_help="Write groups that no record names, with their current values.")
@with_settings
@click.argument("file", type=click.File("rb"))
@click.option("--store", metavar="NAME", help="Which one of [read_stores.NAME]; optional if there is only one.")
@click.option("--fold", metavar="NAME", help="Fold of the groups; optional if the store has only one.")
def fill(settings: Settings, file: BinaryIO, store: str | None, fold: str | None) -> int:
    """Write groups that no record names into a read store, with the current values of its source.

    Workers fill a new store from its topics. Groups that have not changed since the fold began are in no topic: list them in FILE
    (- is stdin), one JSON object per line, with the group fields and the changed names as in a folded record. Values from records
    stay, because every record counts as newer. So workers may run meanwhile, and the command may be repeated.

    \b
    Exit codes:
      0   the store has the values of every line
      1   some lines were rejected, which are reported, or the settings are invalid
      75  the store or its source does not answer
    """  # noqa: D301  # \b is for click: keep these lines as they are
    declared = settings.read_store(store)
    rejected: list[str] = []
    done = asyncio.run(_run_fill(settings, declared, fold, file, lambda number, why: rejected.append(f"line {number}: {why}")))
    for line in rejected[:MAX_SHOWN]:
        click.echo(line, err=True)
    if len(rejected) > MAX_SHOWN:
        click.echo(f"and {len(rejected) - MAX_SHOWN} more", err=True)
    click.echo(f"{counted(done.lines - done.rejected, 'line')} of {done.lines} in read store {declared.name}")
    return ConfigurationError.exit_code if done.rejected else 0


async def _run_fill(
    settings: Settings,
    declared: ReadStoreSettings,
    fold: str | None,
    lines: Iterable[bytes],
    on_rejected: Callable[[int, str], None],
) -> FillResult:
    from streams_app.cli.progress import show_progress
    from streams_app.clock import SystemClock
    from streams_app.operations.fill import Fill

    clock = SystemClock()
    with show_progress(clock, "filling") as show:
        return await Fill(settings, declared, fold, clock, on_rejected=on_rejected, on_progress=show).run(lines)


@command.command(name="verify")
@with_settings
@click.option("--store", metavar="NAME", help="Which one of [read_stores.NAME]; optional if there is only one.")
@click.option("--repair", is_flag=True, help="Write the correct values, except to cells that were written meanwhile.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Maximum number of differences shown."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each difference, for programs.")
@click.option(
    "--wait",
    type=click.FloatRange(0, 3_600),
    default=5.0,
    show_default=True,
    help="Seconds between two checks of a difference: more than a change takes from the source into its open group.",
)
def verify(settings: Settings, store: str | None, repair: bool, limit: int, as_json: bool, wait: float) -> int:
    """Compare a read store with its source, and print the differences.

    Every cell of the store is compared with the source, and every cell that the folded topics name is looked up in the store.
    Workers may run: each difference is checked a second time, and reported only if it persists and its group is not open.

    \b
    Exit codes:
      0   no difference, or all were repaired
      1   there are differences, or the settings are invalid
      3   the store is behind and makes no progress, with or without differences
      75  the store, its source or Kafka does not answer
    """  # noqa: D301  # \b is for click: keep these lines as they are
    from streams_app.clock import SystemClock
    from streams_app.operations.audit import audit
    from streams_app.operations.verify_result import behind_text, difference_json, repair_facts, summary

    declared = settings.read_store(store)
    shown: list[Difference] = []

    def take(found: Difference) -> None:
        if as_json and len(shown) < limit:
            click.echo(difference_json(found))
        shown.append(found) if len(shown) < limit else None

    done = asyncio.run(_run_verify(settings, declared.name, repair, wait, take))
    if shown and not as_json:
        from streams_app.cli.tables import print_fitted

        print_fitted(columns_of(shown))
    for line in summary(done, declared.name):
        click.echo(line, err=as_json)
    if done.differences > len(shown):
        click.echo(f"{len(shown)} of {done.differences} differences are shown; --limit shows more", err=True)
    if repair:
        audit(SystemClock(), "repair", **repair_facts(done, declared.name))
    if done.behind:
        raise BehindError(behind_text(done, declared.name))
    return 0 if done.differences == done.repaired else ConfigurationError.exit_code


async def _run_verify(settings: Settings, store: str, repair: bool, wait: float, take: Any) -> VerifyResult:
    from streams_app.cli.progress import show_progress
    from streams_app.clock import SystemClock
    from streams_app.operations.verify import Verification

    clock = SystemClock()
    with show_progress(clock, "comparing") as show:
        comparing = Verification(
            settings, settings.read_store(store), clock, is_repair=repair, wait_seconds=wait, on_difference=take, on_progress=show
        )
        return await comparing.run()


def columns_of(found: list[Difference]) -> list[Column]:
    """Return the columns of the table of differences."""
    from streams_app.cli.tables import Column
    from streams_app.formatting import shown
    from streams_app.operations.verify_result import cell_text

    folds = [one.cell.fold for one in found]
    return [
        Column("GROUP", [shown(one.cell.group_key) for one in found], least=16),
        Column("NAME", [shown(one.cell.name) for one in found], least=10),
        Column("WHAT", [one.kind.value for one in found], least=7),
        Column("IN THE STORE", ["-" if one.stored is None else cell_text(one.stored.value) for one in found], least=12),
        Column("IN THE SOURCE", [one.why or cell_text(one.change.value) for one in found], least=13),
        Column("FOLD", folds, least=10, rank=1, is_known=len(set(folds)) == 1),
    ]


@command.command(name="rebuild", short_help="Fill a new table, and switch to it.")
@with_settings
@click.option("--store", metavar="NAME", help="Which one of [read_stores.NAME]; optional if there is only one.")
def rebuild(settings: Settings, store: str | None) -> None:
    """Fill a new table for a read store, and switch to it.

    The new table is filled from the folded topics, with current values, and with cells that only the current table has. Workers and
    readers may run meanwhile: the switch is one transaction, no value becomes older, and the former table stays as TABLE_old until
    the next rebuild. An interrupted rebuild changes nothing; run it again.
    """
    from streams_app.operations.rebuild import summary

    declared = settings.read_store(store)
    for line in summary(asyncio.run(_run_rebuild(settings, declared)), declared):
        click.echo(line)


async def _run_rebuild(settings: Settings, declared: ReadStoreSettings) -> RebuildResult:
    from streams_app.cli.progress import show_progress
    from streams_app.clock import SystemClock
    from streams_app.operations.rebuild import Rebuild

    clock = SystemClock()
    with show_progress(clock, "reading") as show:
        return await Rebuild(settings, declared, clock, on_found=click.echo, on_progress=show).run()
