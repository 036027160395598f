"""``streams-app check``: can this run?"""

from __future__ import annotations

import asyncio
from collections import Counter

import click

from streams_app.cli.options import with_settings
from streams_app.settings import Settings

ADVICE = (
    "Add partitions to a source only at lag 0 and after `streams-app groups flush --all`; else versions of a group may go back."
)
COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command(name="check", short_help="Look whether a worker can run with these settings.")
@with_settings
def command(settings: Settings) -> int:
    """Check whether a worker can run with these settings; nothing is changed.

    It checks Kafka, topics, rights on topics and groups, retention against max_hold, Redis version, eviction policy, memory and
    persistence, clock skew, recreated topics, and read stores; for subscribers, their topics, retention against retries and
    patience, keys, fields of folded records and their types, commits, and the memory of ids; for journals, retention against keep,
    and room for max_bytes. Redis and the read store are tested by a write that is rolled back. Each finding says what to do. The
    exit code is 1 if there is an error.
    """
    from streams_app.checking import findings
    from streams_app.clock import SystemClock
    from streams_app.formatting import counted

    counts: Counter[str] = Counter()

    async def run_checks() -> None:
        async for finding in findings(settings, SystemClock()):
            counts[finding.level] += 1
            click.echo(f"{click.style(f'{finding.level:<8}', fg=COLOURS[finding.level])} {finding.text}")
            if finding.advice:
                click.echo(f"         -> {finding.advice}")

    asyncio.run(run_checks())
    click.echo(f"{counted(counts['error'], 'error')}, {counted(counts['warning'], 'warning')}")
    # Of no use beside errors: what is missing gets all its partitions when it is made.
    if settings.folds and not counts["error"]:
        click.echo(ADVICE)
    return 1 if counts["error"] else 0
