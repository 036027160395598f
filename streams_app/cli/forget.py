"""``streams-app forget``: removes a key from everything that the application derives from its events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import click

from streams_app.cli.options import with_settings
from streams_app.clock import SystemClock
from streams_app.errors import TryAgainError
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.operations.forget.part import Receipt

MAX_KEY_BYTES: Final = 65_536


@click.command(name="forget", short_help="Erase a key from all derived state.")
@with_settings
@click.option("--yes", is_flag=True, help="Erase it; without this option nothing is changed.")
@click.option("--json", "as_json", is_flag=True, help="The receipt, or the plan, as one JSON object.")
@click.option("--reference", metavar="TEXT", default="", help="Text for receipt and audit line, such as the number of the request.")
@click.option("--with-key", is_flag=True, help="Name the key in the receipt; without this option it has only a salted digest.")
@click.option("--tombstones", is_flag=True, help="Write tombstones of KEY into compacted topics that only this application writes.")
@click.option(
    "--tombstone-topic",
    "tombstone_topics",
    metavar="TOPIC",
    multiple=True,
    help="Write a tombstone of KEY into each partition of this compacted topic of the application, such as a source; repeatable.",
)
@click.option("--skip-dead-letters", is_flag=True, help="Do not count the dead letters and replayed events of KEY.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    help="Seconds to wait for workers to read what was in the topics at the start; 0: do not wait.",
)
@click.argument("key")
def command(
    settings: Settings, yes: bool, as_json: bool, reference: str, with_key: bool, tombstones: bool,
    tombstone_topics: tuple[str, ...], skip_dead_letters: bool, timeout: float, key: str,
) -> int | None:  # fmt: skip
    """Erase KEY from folds, journals, live views and read stores, and print a receipt.

    Write KEY as in the events: account_1, 17, ["a",1]. With quotes, '"17"', it is a text. Without quotes, 17 stands for the number
    and the text. Of journals it is the key, of live views the name of a page or an item.

    Without --yes, the command only shows what it would erase. Workers may run. What was in the topics when the command began is
    erased: the command waits until the workers have read it. What arrives afterwards is new. Records in topics stay until their
    retention ends; the receipt says when. If it says what is not erased yet, the exit code is 75: run the command again, also after
    it was interrupted.
    """
    from streams_app.cli.progress import show_progress
    from streams_app.formatting import json_line, time_text
    from streams_app.operations.audit import audit, user_text
    from streams_app.operations.forget import Request, forget, plan_forget
    from streams_app.operations.forget.part import ForgottenKey
    from streams_app.operations.forget.topics import WantedTombstones

    if len(key.encode("utf-8", "surrogateescape")) > MAX_KEY_BYTES:
        raise click.UsageError(f"KEY has more than {MAX_KEY_BYTES} bytes: no group has such a key (limits.key_bytes)")
    clock = SystemClock()
    began = time_text(clock.now_ms())
    with show_progress(clock, "searching") as show:
        request = Request(key, WantedTombstones(tombstones, tombstone_topics), not skip_dead_letters, show)
        receipt = asyncio.run(forget(settings, request, clock, timeout) if yes else plan_forget(settings, request, clock))
    if as_json:
        times = began, time_text(clock.now_ms())
        row = receipt.as_json(
            ForgottenKey.of(key), is_plan=not yes, with_key=with_key, times=times, by=user_text(), reference=reference
        )
        click.echo(json_line(row))
    else:
        _print(receipt, is_plan=not yes)
    if not yes:
        return None
    removed = sum(row["number"] for row in receipt.counts(is_written=False))
    audit(clock, "forget", reference=repr(reference), removed=removed, complete=not receipt.not_yet)
    return TryAgainError.exit_code if receipt.not_yet else None


def _print(receipt: Receipt, *, is_plan: bool) -> None:
    from streams_app.formatting import time_text

    erased, written = receipt.counts(is_written=False), receipt.counts(is_written=True)
    for verb, rows in (("erase", erased), ("write", written)):
        shown = f"would {verb}" if is_plan else {"erase": "erased     ", "write": "written    "}[verb]
        for row in rows:
            click.echo(f"{shown}  {row['where']}: {row['number']} {row['what']}")
    if not erased:
        click.echo("nothing is stored of this key" if is_plan else "nothing was stored of this key")
    for kept in receipt.kept:
        until = "" if kept.until_ms is None else f" ({time_text(kept.until_ms)})"
        click.echo(f"not erased  {kept.where}: {kept.why}{until}")
    for why in receipt.not_yet:
        click.echo(f"not yet     {why}")
    if is_plan:
        click.echo("nothing was changed; --yes does it")
    elif receipt.not_yet:
        click.echo("not complete: run the command again")
    else:
        click.echo("complete")
