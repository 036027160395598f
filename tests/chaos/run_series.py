"""Runs of one kind of chaos test, one after the other. The folders of a failed run are kept."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, Protocol

import click


class Run(Protocol):
    """One run.

    Attributes:
        wrong: Violations and failures.
    """

    wrong: list[str]

    def line(self) -> str:
        """Return the summary of the run."""


topology_option = click.option(
    "--topology", type=click.Choice(["single", "sentinel"]), default="single", show_default=True, help="Deployment of Redis."
)


def run_all(name: str, seeds: range, perform: Callable[[int, Path], tuple[Run, Coroutine[Any, Any, None]]]) -> NoReturn:
    """Perform a run for each seed, and exit with 1 if one of them has a violation.

    Args:
        name: Name of the folder of logs.
        seeds: Seed of each run.
        perform: Function of seed and folder that returns the run and the coroutine that performs it.
    """
    base = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    base.chmod(0o755)  # a server that must not run as root reads it
    has_failed = False
    for seed in seeds:
        folder = base / f"run-{seed}"
        folder.mkdir()
        run, performing = perform(seed, folder)
        asyncio.run(performing)
        click.echo(run.line())
        has_failed |= bool(run.wrong)
    if has_failed:
        click.echo(f"logs: {base}", err=True)
    else:
        shutil.rmtree(base, ignore_errors=True)
    sys.exit(1 if has_failed else 0)
