"""``streams-app live``: shows live views, serves them to browsers, imports past events, and makes access tokens to try the hub."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from streams_app.cli import run_server
from streams_app.cli.options import with_settings
from streams_app.errors import ConfigurationError
from streams_app.formatting import counted, parse_duration, span, time_text
from streams_app.settings import LiveView, Settings


@click.group(name="live")
def command() -> None:
    """Show what live views hold, and serve them to browsers."""


@command.command(name="show")
@with_settings
@click.option("--view", "views", multiple=True, metavar="NAME", help="Only this view; may be repeated.")
@click.option("--limit", type=click.IntRange(0, 1_000), default=10, show_default=True, help="Maximum number of items of each view.")
@click.option("--json", "as_json", is_flag=True, help="The messages that a browser receives, one per line, for programs.")
@click.argument("page")
def show(settings: Settings, views: tuple[str, ...], limit: int, as_json: bool, page: str) -> None:
    """Show the current contents of PAGE, and the state of its views.

    Write PAGE as it is in the events: 7, spring-sale. Reads Redis, as a hub does; no worker has to run. For each view it shows the
    state, the number of items, the newest items with their times, and when the next item expires. If the state is not `ok`, it
    shows the reason.

    If a page has no items, the command searches the newest million records of the source in Kafka, and says whether the page is
    empty or was never seen.
    """
    from streams_app.operations.live import lines_of, page_of_views

    for found in asyncio.run(page_of_views(settings, page, views, limit)):
        click.echo(found.state.to_json() if as_json else "\n".join(lines_of(found)))
        if not as_json and found.view.is_of_topic and found.state.count == 0:
            click.echo(f"  {asyncio.run(_history(settings, found.view, page))}")


async def _history(settings: Settings, view: LiveView, page: str) -> str:
    from streams_app.clock import SystemClock
    from streams_app.operations.live_history import history_of_page, history_text

    return history_text(await history_of_page(settings, view, page, SystemClock()), view)


@command.command(name="serve")
@with_settings
@click.option("--page", "has_page", is_flag=True, help="Also serve an example page of all public views at /.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="As for worker.")
def serve(settings: Settings, has_page: bool, log_level: str, log_format: str) -> None:
    """Serve live views to browsers; needs Redis, but not Kafka.

    The section live_server has its settings. Start any number of these servers behind a proxy that supports HTTP/2. SIGTERM ends
    one within seconds, and its browsers connect to another one.

    \b
    GET /live/PAGE?view=A&view=B          states of the views as JSON
    GET /live/PAGE/events?view=A&view=B   the same as server-sent events, at each change
    GET /live.js                          JavaScript module for web pages
    """  # noqa: D301  # \b is for click: keep these lines as they are
    from streams_app.live.hub.serving import serve_views
    from streams_app.logs import set_up_logging

    set_up_logging(log_level, log_format)
    run_server(lambda: serve_views(settings, has_page=has_page), log_format)


@command.command(name="script")
def script() -> None:
    """Print the JavaScript module for web pages.

    Serve it with the files of your application: `streams-app live script > static/live.js`.

    A page that loads the module from its own server connects to a hub as soon as one runs. Hubs serve the same module at /live.js;
    if a page loads it from there while no hub runs, the page never connects.
    """
    from streams_app.live.hub.server import web_file

    click.echo(web_file("live.js"), nl=False)


@command.command(name="import")
@with_settings
@click.option("--dry-run", is_flag=True, help="Check the file and the topic, and show what would be sent; the default.")
@click.option("--yes", is_flag=True, help="Send the events; without this option nothing is sent.")
@click.argument("view")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_(settings: Settings, dry_run: bool, yes: bool, view: str, file: Path) -> None:
    """Produce older events to the source of VIEW.

    The records get the original timestamps of the events.

    FILE has one JSON object per line: `key` of the record, a string or null; `time`, ms since 1970 or an ISO time; `value`, the
    event; and `headers` if the view uses @type. All lines are checked before any is sent: if one is invalid, the exit code is 1.
    Every consumer of the topic reads the records; those of this application are listed. If an import fails half-way, it shows the
    line from which to continue: after exit code 75 when the broker is back, after 1 when the cause of the rejection is fixed.

    \b
    {"key": "7", "time": "2026-11-21T14:00", "value": {"project_id": 7, "news_id": 1}, "headers": {"ce_type": "news.published"}}
    """  # noqa: D301  # \b is for click: keep these lines as they are
    from streams_app.clock import SystemClock
    from streams_app.operations.audit import audit
    from streams_app.operations.live_import import plan_import, send_import

    if dry_run and yes:
        raise click.UsageError("--dry-run or --yes, not both")
    plan = asyncio.run(plan_import(settings, view, file, SystemClock()))
    source = settings.live_view(view).source
    click.echo(f"{counted(plan.lines, 'record')} for {source}, the oldest of {time_text(plan.oldest_ms or 0)}")
    click.echo(
        f"live view {view}: {plan.put:,} shown, {plan.removed:,} removed, {plan.expired:,} older than its expiry, "
        f"{plan.other:,} not for it"
    )
    if plan.unkept and plan.kept_ms is not None:
        what = f"{counted(plan.unkept, 'record')} older than {source} is kept ({span(plan.kept_ms)})"
        click.echo(f"{what}: the broker removes them soon")
    others = "; ".join(plan.readers) or "nobody"
    click.echo(f"who else of this application reads {source}: {others}")
    if not yes:
        click.echo("nothing was sent; --yes does it")
        return
    asyncio.run(send_import(settings, view, file, plan))
    click.echo("sent")
    audit(SystemClock(), "live-import", live=view, topic=source, records=plan.lines)


@command.command(name="token")
@with_settings
@click.option("--sub", default="", metavar="NAME", help="Name of the token's owner, which views with people = true show.")
@click.option("--expires", default="1h", show_default=True, metavar="DURATION", help="At most 24h.")
@click.argument("pages", nargs=-1, required=True, metavar="PAGE...")
def token(settings: Settings, sub: str, expires: str, pages: tuple[str, ...]) -> None:
    """Print a token for PAGEs, to try the hub.

    `prefix*` stands for all pages that begin with this prefix. A browser sends the token as the cookie streams_app_live.
    Applications make their own tokens, see docs/reference/live-views.md.
    """
    from streams_app.clock import SystemClock
    from streams_app.live.hub.tokens import LONGEST_MS, signed

    try:
        expires_ms = round(parse_duration(expires).total_seconds() * 1000)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--expires") from error
    if not 0 < expires_ms <= LONGEST_MS:
        raise click.BadParameter("must be at most 24h", param_hint="--expires")
    found = settings.live_server.secrets
    if not found:
        raise ConfigurationError(["live_server.secret_file is not set: without a secret no token is accepted"])
    click.echo(signed(found[0], pages, sub, SystemClock().now_ms() + expires_ms))
