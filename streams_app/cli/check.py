"""``streams-app check``: checks whether a worker can run."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import Counter

import click

from streams_app.cli.options import with_settings
from streams_app.settings import Settings

ADVICE = (
    "Add partitions to a source only at lag 0 and after `streams-app groups flush --all`; else versions of a group may go back."
)
COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command(name="check", short_help="Check whether a worker can run with these settings.")
@with_settings
def command(settings: Settings) -> int:
    """Check whether a worker can run with these settings; changes nothing.

    Kafka: topics, recreated topics, rights on topics and groups, retention compared with max_hold. Redis: version, eviction
    policy, memory, persistence, clock skew. Read stores: tables and source. Subscribers: topics, retention compared with
    retries and patience, keys, fields of folded records and their types, commits, memory for ids. Journals: retention
    compared with keep, memory for max_bytes.

    Redis and read stores are tested by a write that is undone. Each finding has advice. The exit code is 1 if there is an error.
    """
    from streams_app.checking import findings
    from streams_app.cli.sentences import hanging
    from streams_app.clock import SystemClock
    from streams_app.formatting import counted

    counts: Counter[str] = Counter()
    # A program that reads the output gets a line for each finding, and one for its advice.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize

    async def run_checks() -> None:
        async for finding in findings(settings, SystemClock()):
            counts[finding.level] += 1
            click.echo(f"{click.style(f'{finding.level:<8}', fg=COLOURS[finding.level])} {hanging(finding.text, 9, width)}")
            if finding.advice:
                click.echo(f"         -> {hanging(finding.advice, 12, width)}")

    asyncio.run(run_checks())
    click.echo(f"{counted(counts['error'], 'error')}, {counted(counts['warning'], 'warning')}")
    # Not shown with errors: a missing topic is created with all its partitions.
    if settings.folds and not counts["error"]:
        click.echo(hanging(ADVICE, 0, width))
    return 1 if counts["error"] else 0
