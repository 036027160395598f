"""``streams-app events``: shows what the catalogue of an application declares, and explains why an event is not finished."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from streams_app.cli.options import MomentType, with_settings
from streams_app.clock import SystemClock
from streams_app.errors import ConfigurationError
from streams_app.settings import Settings
from streams_app.text_files import read_text

if TYPE_CHECKING:
    from streams_app.cli.tables import Column
    from streams_app.operations.event_facts import EventExplanation, FoldedEventState
    from streams_app.subscribers.declaration.catalogue import Catalogue
    from streams_app.subscribers.declaration.subscription import Subscription

MAX_DOCUMENT_BYTES: Final = 16 << 20
"""Maximum size of the older AsyncAPI document of ``--against``."""

MAX_OFFSETS: Final = 1_000_000
"""Default of ``--limit``: maximum number of offsets that are searched for an id, which takes some seconds."""


@click.group(name="events")
def command() -> None:
    """Show the events and subscribers that the catalogue declares."""


@command.command(name="list")
@with_settings
def list_declared(settings: Settings) -> None:
    """List events and subscribers, with the overrides of the settings.

    They are declared by the catalogue that events.catalogue names. It is imported; no server is contacted.
    """
    from streams_app.cli.tables import print_fitted

    catalogue, subscriptions = _declared(settings)
    print_fitted(_event_columns(catalogue))
    if subscriptions:
        click.echo()
        print_fitted(_subscriber_columns(subscriptions))


@command.command(name="asyncapi")
@with_settings
@click.option(
    "--against",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="Compare with an older document instead of printing the new one; exit code 1 if a change is breaking.",
)
def asyncapi(settings: Settings, against: Path | None) -> int:
    """Print the AsyncAPI 3.0 document of the application, as JSON.

    With --against, for CI: print each change that breaks producers or consumers of the older document, one per line. Breaking
    changes are an event that was removed, moved to another topic or keyed by another field, a field that was removed or became
    required, and a changed type or format.
    """
    from streams_app.events.compatibility import breaking_changes
    from streams_app.subscribers.running.description import asyncapi_of

    document = asyncapi_of(settings.app_id, *_declared(settings))
    if against is None:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return 0
    try:
        changes = breaking_changes(_read(against), document)
    except ValueError as error:
        raise ConfigurationError([f"--against {against}: {error}"]) from error
    for change in changes:
        click.echo(change)
    if not changes:
        click.echo("no breaking change")
    return 1 if changes else 0


@command.command(name="retry")
@with_settings
@click.argument("subscriber")
@click.option("--yes", is_flag=True, help="Retry them; without this option nothing is retried.")
def retry(settings: Settings, subscriber: str, yes: bool) -> None:
    """Retry now the events of SUBSCRIBER that wait for a retry.

    After the cause of failures is mended, waiting events need not wait until they are due. If the circuit breaker is open, the
    workers probe at once, too. An attempt that fails counts as at any other time. Order by key, the rate and the concurrency are
    kept. Workers keep running, and each carries out the request within two seconds.

    Without --yes, the command only shows what waits.
    """
    from streams_app.operations.audit import audit
    from streams_app.operations.retry_now import retry_now, waiting_events
    from streams_app.subscribers.declaration.loading import subscription_named

    one, clock = subscription_named(settings, subscriber), SystemClock()
    if not yes:
        found = asyncio.run(waiting_events(settings, one, clock))
        click.echo("\n".join([*found.lines(clock.now_ms()), "nothing is retried yet: repeat it with --yes"]))
        return
    done = asyncio.run(retry_now(settings, one, clock))
    click.echo(done.line())
    audit(clock, "retry", subscriber=one.subscriber.name, events=done.events, workers=done.workers)


@command.command(name="explain")
@with_settings
@click.argument("subscriber")
@click.argument("event", metavar="ID|KEY|TOPIC:PARTITION:OFFSET")
@click.option(
    "--since",
    type=MomentType(),
    metavar="WHEN",
    help="By id: how far back finished events are searched: a duration (24h), an ISO time, or ms since 1970. Default: as long as "
    "the subscriber remembers ids.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=MAX_OFFSETS,
    show_default=True,
    help="By id: maximum number of offsets to search; unfinished events come first.",
)
@click.option("--event-source", metavar="SOURCE", help="By id: only an event with this ce_source; ids are unique within a source.")
@click.option("--json", "as_json", is_flag=True, help="Everything that is known, as one JSON object.")
def explain(
    settings: Settings,
    subscriber: str,
    event: str,
    since: Callable[[int], int] | None,
    limit: int,
    event_source: str | None,
    as_json: bool,
) -> None:
    """Explain why SUBSCRIBER has not finished an event.

    Name the event by its position or by its id. The position consists of topic, partition and offset, and is the faster way. The id
    is the ce_id of the event, or the fold-id of a folded record. If no event has the id, but it is the record key of searched
    events, the command reports the state of the newest five of them.

    The command looks for an id in four places, one after another, and stops at the first match. It begins with the replayed events
    that are not finished. Next, it reads the topic from the committed offsets to the end. Then it reads the topic before the
    committed offsets, back to --since. Finally, it reads the dead letters of the subscriber.

    For a subscriber of folded records, TOPIC may also be the source of the fold. The command then shows whether the event is in an
    open group, was dropped with its group, or is in an emitted record.

    The state of the subscriber comes from the worker on this machine, if one runs, and everything else from Kafka and Redis.
    """
    from streams_app.cli.sentences import lay_out
    from streams_app.formatting import json_line
    from streams_app.operations.event_text import event_sentences
    from streams_app.subscribers.declaration.loading import subscription_named

    one = subscription_named(settings, subscriber)
    now_ms = SystemClock().now_ms()
    since_ms = now_ms - one.subscriber.remember_ms if since is None else since(now_ms)
    explanation = asyncio.run(_explained(settings, one, event, since_ms, limit, event_source))
    if as_json:
        click.echo(json_line(msgspec.to_builtins(explanation)))
        return
    columns = shutil.get_terminal_size().columns
    click.echo("\n".join(filter(None, (lay_out(verdict, facts, columns) for verdict, facts in event_sentences(explanation)))))


async def _explained(
    settings: Settings, one: Subscription, event: str, since_ms: int, limit: int, source: str | None
) -> EventExplanation | FoldedEventState:
    from streams_app.cli.progress import show_progress
    from streams_app.operations.explain_event import SearchScope, explain_event

    clock = SystemClock()
    with show_progress(clock, "searching") as show:
        return await explain_event(settings, one, event, clock, SearchScope(since_ms, limit, show, source))


def _declared(settings: Settings) -> tuple[Catalogue, tuple[Subscription, ...]]:
    from streams_app.subscribers.declaration.loading import catalogue_of
    from streams_app.subscribers.declaration.subscription import subscriptions_of

    catalogue = catalogue_of(settings)
    return catalogue, subscriptions_of(catalogue, settings)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path, MAX_DOCUMENT_BYTES))
    except (OSError, RecursionError) as error:
        raise ValueError(f"it cannot be read: {error}") from error
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004  # the content of the file is wrong, not an argument
    return found


def _event_columns(catalogue: Catalogue) -> list[Column]:
    from streams_app.cli.tables import Column

    events = catalogue.events
    return [
        Column("EVENT", [event.key for event in events], least=12),
        Column("TOPIC", [event.topic for event in events], least=12, rank=2),
        Column("KEYED BY", [event.keyed_by or "-" for event in events]),
        Column("PAYLOAD", [event.payload.__name__ for event in events], least=8, rank=3),
        Column("DESCRIPTION", [" ".join(event.description.split()) for event in events], least=20, rank=4),
    ]


def _subscriber_columns(subscriptions: tuple[Subscription, ...]) -> list[Column]:
    from streams_app.cli.tables import Column
    from streams_app.formatting import duration_text

    declared = [one.subscriber for one in subscriptions]
    return [
        Column("SUBSCRIBER", [one.name for one in declared], least=12),
        Column("EVENT", [one.event_key for one in declared], least=20),
        Column("TOPIC", [one.topic for one in subscriptions], least=20, rank=2),
        Column("IDEMPOTENT", [one.idempotent for one in declared]),
        Column("ORDERED", [one.ordered or "-" for one in declared], rank=4),
        Column("CONCURRENCY", [str(one.concurrency) for one in declared], rank=5),
        Column("RATE", ["-" if one.rate is None else str(one.rate) for one in declared], rank=6),
        Column("TIMEOUT", [duration_text(one.timeout_ms) for one in declared], rank=6),
        Column("ATTEMPTS", [str(one.retry.attempts) for one in declared], rank=7),
        Column("ENABLED", ["yes" if one.is_enabled else "no" for one in declared], rank=3),
        Column("GROUP", [one.group for one in subscriptions], least=12, rank=8, is_known=True),
    ]
