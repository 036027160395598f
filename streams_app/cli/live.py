"""``streams-app live``: what live views show."""

from __future__ import annotations

import asyncio

import click

from streams_app.cli.options import with_settings
from streams_app.settings import Settings


@click.group(name="live")
def command() -> None:
    """Show what live views hold."""


@command.command(name="show")
@with_settings
@click.option("--view", "views", multiple=True, metavar="NAME", help="Only this view; may be repeated.")
@click.option("--limit", type=click.IntRange(0, 1_000), default=10, show_default=True, help="Items of each view at most.")
@click.option("--json", "as_json", is_flag=True, help="The messages that a page is sent, one a line, for programs.")
@click.argument("page")
def show(settings: Settings, views: tuple[str, ...], limit: int, as_json: bool, page: str) -> None:
    """What does PAGE show now, and why?

    PAGE as it is in the events: 7, spring-sale. Reads Redis, as a hub does; it works while no worker runs. Of each view its state,
    how many items it has, the newest with their times, and when the next one leaves. A view that is not `ok` says why.
    """
    from streams_app.operating.live import lines_of, page_of_views

    for found in asyncio.run(page_of_views(settings, page, views, limit)):
        click.echo(found.state.to_json() if as_json else "\n".join(lines_of(found)))
