"""Options several commands share: where the settings come from.

A file, or a Python module that has made an application or settings itself: functions are only in the latter.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

import click

from streams_app.errors import ConfigurationError
from streams_app.importing import attribute_of
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.worker.faust_app import FoldingApp

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_ATTRIBUTE: Final = "app"

config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="Settings. Default: $STREAMS_APP_CONFIG, else ./streams.toml. STREAMS_APP_<SECTION>_<KEY> in the environment overrides.",
)
app_option = click.option(
    "-A",
    "--app",
    default=None,
    metavar="MODULE:APP",
    help="What a Python module has made by create_app or Settings, as for faust -A; instead of a file and the environment.",
)


def with_settings(command: Callable[Concatenate[Settings, P], R]) -> Callable[..., R]:
    """Gives a command ``--config`` and ``--app``, and the settings they name as its first argument."""

    @config_option
    @app_option
    @functools.wraps(command)
    def run(config: Path | None, app: str | None, *args: P.args, **kwargs: P.kwargs) -> R:
        declared = named(config, app)
        return command(declared if isinstance(declared, Settings) else declared.settings, *args, **kwargs)

    return run


def named(config: Path | None, app: str | None) -> FoldingApp | Settings:
    """What ``--app`` names, else the settings of the file and the environment.

    Raises:
        ConfigurationError: With every fault there is.
        click.UsageError: Both were given.
    """
    if app is None:
        return _loaded(config)
    if config is not None:
        raise click.UsageError("--config and --app exclude each other: the module says what its settings are")
    return _made_by(app)


def _loaded(config: Path | None) -> Settings:
    try:
        return Settings.load(config, os.environ)
    except ConfigurationError as error:
        from streams_app.subscribers.loading import faults_beside

        raise ConfigurationError([*error.faults, *faults_beside(config, os.environ)]) from error


def _made_by(app: str) -> FoldingApp | Settings:
    """Imports what ``MODULE:APP`` names; modules are looked for in the current directory first.

    Raises:
        ConfigurationError: There is no such module or name, the module cannot be imported, or it is something else.
    """
    name, _, attribute = app.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    found = attribute_of("--app", name, attribute)
    if not isinstance(getattr(found, "settings", found), Settings):
        raise ConfigurationError(
            [f"--app: {attribute!r} in {name!r} is of type {type(found).__name__}, not what create_app(...) or Settings(...) makes"]
        )
    return found
