"""Options that several commands share: where the settings come from, and types of arguments.

Settings come from a file (``--config``) or from a Python module (``--app``). Only settings from a module can contain functions.
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
from typing import Any

from streams_app.formatting import milliseconds, parse_duration, parse_moment

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
    help="Result of create_app or Settings in a Python module, as for faust -A; replaces the file and the environment.",
)


def with_settings(command: Callable[Concatenate[Settings, P], R]) -> Callable[..., R]:
    """Add the options ``--config`` and ``--app`` to a command, and pass the loaded settings to it as the first argument."""

    @config_option
    @app_option
    @functools.wraps(command)
    def run(config: Path | None, app: str | None, *args: P.args, **kwargs: P.kwargs) -> R:
        declared = named(config, app)
        return command(declared if isinstance(declared, Settings) else declared.settings, *args, **kwargs)

    return run


def named(config: Path | None, app: str | None) -> FoldingApp | Settings:
    """Return the application or settings that ``--app`` names. Without ``--app``, load the settings, see :meth:`.Settings.load`.

    Raises:
        ConfigurationError: The settings are invalid, with all faults, or the object that ``--app`` names cannot be used.
        click.UsageError: Both options were given.
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
        from streams_app.subscribers.declaration.loading import faults_beside

        raise ConfigurationError([*error.faults, *faults_beside(config, os.environ)]) from error


def _made_by(app: str) -> FoldingApp | Settings:
    """Import the application or settings ``MODULE:APP``; the current directory is searched first."""
    name, _, attribute = app.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    found = attribute_of("--app", name, attribute)
    if not isinstance(getattr(found, "settings", found), Settings):
        raise ConfigurationError(
            [f"--app: {attribute!r} in {name!r} is of type {type(found).__name__}, not what create_app(...) or Settings(...) makes"]
        )
    return found


EARLIEST: Final = "earliest"


class DurationType(click.ParamType):
    """Converts a duration such as ``15m`` to ms."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            found = milliseconds(parse_duration(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if found < 1:
            self.fail(f"{value!r} is shorter than 1ms", param, ctx)
        return found


class DurationsType(DurationType):
    """Converts a list of durations such as ``1s,10s,60s`` to ms."""

    name = "durations"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return tuple(super(DurationsType, self).convert(part.strip(), param, ctx) for part in value.split(",") if part.strip())


class ShareType(click.ParamType):
    """Converts a share, such as ``0.95``, to a number from 0 to below 1."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            found = float(value)
        except ValueError:
            found = -1.0
        if not 0 <= found < 1:  # also rejects NaN
            self.fail(f"{value!r} is not a share that can be folded: write a number from 0 to below 1, as in 0.95", param, ctx)
        return found


class MomentType(click.ParamType):
    """Converts a time: a duration ago (``-24h``), an ISO time, or ms since 1970; for ``--from`` also ``earliest``."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Callable[[int], int | None]:
        """Return a function that takes the current time in ms and returns the given time in ms, or None for ``earliest``."""
        if value == EARLIEST and param is not None and param.name == "begin":
            return lambda _: None
        try:
            parse_moment(value, 0)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return lambda now_ms: parse_moment(value, now_ms)
