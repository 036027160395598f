"""Runs of a kind of chaos, one after the other, each in a folder that stays where one of them has failed."""

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
        wrong: What breaks a promise, or did not work.
    """

    wrong: list[str]

    def line(self) -> str:
        """What is said of it."""


topology_option = click.option(
    "--topology", type=click.Choice(["single", "sentinel"]), default="single", show_default=True, help="How Redis is deployed."
)


def run_all(name: str, seeds: range, perform: Callable[[int, Path], tuple[Run, Coroutine[Any, Any, None]]]) -> NoReturn:
    """Performs a run for each seed and ends the process, with 1 if one of them is wrong.

    Args:
        name: Of the folder of logs.
        seeds: One for each run.
        perform: Seed and folder → the run, and what performs it.
    """
    base = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    base.chmod(0o755)  # a server that must not be root looks into it
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
