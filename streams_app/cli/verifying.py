"""``streams-app read-store verify``: what differs between a read store and its source."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

from streams_app.cli.options import with_settings
from streams_app.errors import BehindError, ConfigurationError
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.cli.tables import Column
    from streams_app.operations.verified import Verified
    from streams_app.read_store.core.comparing import Difference
    from streams_app.read_store.core.merge import Value


@click.command(name="verify")
@with_settings
@click.option("--store", metavar="NAME", help="Which one of [read_stores.NAME]; optional if there is only one.")
@click.option("--repair", is_flag=True, help="Write the differences, except cells that were written meanwhile.")
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
    Workers may run: a difference is checked again, and reported only if it persists and its group is not open.

    \b
    Exit codes:
      0   equal, or all is repaired
      1   something differs, or the settings are wrong
      3   the store is behind and stands still, whatever differs beside that
      75  the store, its source or Kafka does not answer
    """  # noqa: D301  # \b is for click: keep these lines as they are
    from streams_app.operations.verified import behind_text, told

    declared = settings.read_store(store)
    shown: list[Difference] = []

    def take(found: Difference) -> None:
        if as_json and len(shown) < limit:
            click.echo(_line(found))
        shown.append(found) if len(shown) < limit else None

    done = asyncio.run(_run(settings, declared.name, repair, wait, take))
    if shown and not as_json:
        from streams_app.cli.tables import print_fitted

        print_fitted(columns_of(shown))
    for line in told(done, declared.name):
        click.echo(line, err=as_json)
    if done.differences > len(shown):
        click.echo(f"{len(shown)} of {done.differences} differences are shown; --limit shows more", err=True)
    if done.behind:
        raise BehindError(behind_text(done, declared.name))
    return 0 if done.differences == done.repaired else ConfigurationError.exit_code


async def _run(settings: Settings, store: str, repair: bool, wait: float, take: Any) -> Verified:
    from streams_app.cli.showing import showing
    from streams_app.clock import SystemClock
    from streams_app.operations.verify import Verify

    clock = SystemClock()
    with showing(clock, "comparing") as show:
        comparing = Verify(
            settings, settings.read_store(store), clock, is_repair=repair, wait_seconds=wait, on_difference=take, on_progress=show
        )
        return await comparing.run()


def columns_of(found: list[Difference]) -> list[Column]:
    """The table of differences."""
    from streams_app.cli.tables import Column
    from streams_app.formatting import shown

    folds = [one.cell.fold for one in found]
    return [
        Column("GROUP", [shown(one.cell.group_key) for one in found], least=16),
        Column("NAME", [shown(one.cell.name) for one in found], least=10),
        Column("WHAT", [one.kind.value for one in found], least=7),
        Column("IN THE STORE", ["-" if one.stored is None else _text(one.stored.value) for one in found], least=12),
        Column("IN THE SOURCE", [one.why or _text(one.change.value) for one in found], least=13),
        Column("FOLD", folds, least=10, rank=1, is_known=len(set(folds)) == 1),
    ]


def _text(value: Value) -> str:
    from streams_app.formatting import escaped

    return "-" if value is None else escaped(_json(value) or "")


def _json(value: Value) -> str | None:
    """As JSON; what has none, so that every store refuses it, as a text that shows it."""
    from streams_app.read_store.core.values import integer_fault, json_text

    if isinstance(value, int) and integer_fault(value):
        return json.dumps(hex(value))
    try:
        return json_text(value)
    except TypeError:  # an unpaired surrogate
        return json.dumps(value)


def _line(found: Difference) -> str:
    import orjson

    from streams_app.formatting import json_line

    def fragment(value: Value) -> Any:
        text = _json(value)
        return None if text is None else orjson.Fragment(str(text))  # orjson takes no subclass of str

    row = {
        "fold": found.cell.fold, "group": found.cell.group_key, "name": found.cell.name, "what": found.kind.value,
        "store": None if found.stored is None else fragment(found.stored.value), "source": fragment(found.change.value),
        "store_version": None if found.stored is None else found.stored.version,
    }  # fmt: skip
    return json_line(row | ({"why": found.why} if found.why else {}))
