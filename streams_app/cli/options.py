"""Options several commands share: where the settings come from.

A file, or a Python module that has made an application or settings itself: functions are only in the latter.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click
from pydantic import ValidationError

from streams_app.errors import ConfigurationError, StreamsAppError
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.app import FoldingApp

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
        return Settings.load(config, os.environ)
    if config is not None:
        raise click.UsageError("--config and --app exclude each other: the module says what its settings are")
    return _made_by(app)


def _made_by(app: str) -> FoldingApp | Settings:
    """Imports what ``MODULE:APP`` names; modules are looked for in the current directory first.

    Raises:
        ConfigurationError: There is no such module or name, the module cannot be imported, or it is something else.
    """
    name, _, attribute = app.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    module = _imported(name, folder)
    if not hasattr(module, attribute):
        raise ConfigurationError([f"--app: the module {name!r} has no {attribute!r}; name it as MODULE:NAME"])
    found = getattr(module, attribute)
    if not isinstance(getattr(found, "settings", found), Settings):
        raise ConfigurationError(
            [f"--app: {attribute!r} in {name!r} is of type {type(found).__name__}, not what create_app(...) or Settings(...) makes"]
        )
    return found


def _imported(name: str, folder: str) -> Any:
    try:
        return importlib.import_module(name)
    except StreamsAppError:
        raise
    except ValidationError as error:
        faults = [
            f"--app: {name}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}".replace(": : ", ": ")
            for fault in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigurationError(faults) from error
    except Exception as error:  # whatever a module of the user's raises while it is imported
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            fault = f"there is no module {name!r} in {folder}, nor is one installed; --app is MODULE:APP, as in my_folds:app"
        elif isinstance(error, (TypeError, ValueError)) and not name.strip("."):
            fault = f"{name!r} is no name of a module; --app is MODULE:APP, as in my_folds:app"
        else:
            fault = f"importing {name!r} raised {type(error).__name__}: {error}"
            if not isinstance(error, SyntaxError):  # which says itself where it is
                place = traceback.extract_tb(error.__traceback__)[-1]
                fault += f" ({place.filename}:{place.lineno})"
        raise ConfigurationError([f"--app: {fault}"]) from error
