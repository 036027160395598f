"""The program ``streams-app``: one module per command, imported when the command runs or is listed.

Exit codes: 0 success, 1 wrong usage or configuration, 70 internal failure, 75 temporary failure, to be restarted by a supervisor,
130 Ctrl-C. Some commands have others.
"""

from __future__ import annotations

import importlib
import io
import logging
import sys
from collections.abc import Callable
from typing import Final, NoReturn

import click

from streams_app.errors import ConfigurationError, InternalError, StreamsAppError

COMMANDS: Final = {
    "demo": "streams_app.cli.demo",
    "servers": "streams_app.cli.servers",
    "worker": "streams_app.cli.worker",
    "console": "streams_app.cli.console",
    "check": "streams_app.cli.check",
    "topics": "streams_app.cli.topics",
    "groups": "streams_app.cli.groups",
    "tune": "streams_app.cli.tune",
    "dead-letters": "streams_app.cli.dead_letters",
    "reset": "streams_app.cli.reset",
    "forget": "streams_app.cli.forget",
    "read-store": "streams_app.cli.read_store",
    "events": "streams_app.cli.events",
    "live": "streams_app.cli.live",
    "journal": "streams_app.cli.journal",
}

OF_COMMANDS: Final = {"--config": "FILE", "--app": "MODULE:APP", "-A": "MODULE:APP"}
"""Options of nearly every command, each with the name of its argument."""


class _LazyGroup(click.Group):
    """Imports the module of a command when the command runs or is listed. No module loads Faust before its command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names; if there is none, fail, and suggest the most similar name."""
        if args[0] not in COMMANDS:
            from streams_app.formatting import suggestion  # imported here, because `--help` should not load pydantic

            if near := suggestion(args[0], list(COMMANDS)):
                ctx.fail(f"No such command {args[0]!r}{near}")
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="streams_app", prog_name="streams-app")
def group() -> None:
    """Event folding for Kafka: a storm of update events in, one folded record per group out.

    \b
    A first look, without Kafka and Redis (pip install 'streams_app[embedded]'):
        streams-app demo --seconds 20
    With your own Kafka and Redis, and a streams.toml:
        streams-app check
        streams-app topics create
        streams-app worker
    """  # noqa: D301  # \b is for click: keep these lines as they are


def main(arguments: list[str] | None = None) -> None:
    """Run a command, and end the process with the exit code of the command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a character that the terminal cannot show must not end a command
    # Its warnings reach the user as errors of the command; a worker sets up its own logging.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command, report errors on stderr, and return the exit code."""
    try:
        result = group.main(args=arguments, prog_name="streams-app", standalone_mode=False)
    except StreamsAppError as error:
        report_error(error)
        return error.exit_code
    except click.ClickException as error:
        _hinting(error).show()  # without arguments, it shows the help
        return ConfigurationError.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except Exception:  # a bug of this program: logged with its traceback, with its own exit code
        logging.getLogger(__name__).exception("internal failure")
        return InternalError.exit_code
    return result if isinstance(result, int) else 0


def _hinting(error: click.ClickException) -> click.ClickException:
    """Return the error with a hint if an option precedes its command; return any other error unchanged."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return error
    if (option := error.option_name) not in OF_COMMANDS:
        return error
    text = f"{option} must follow the command: {error.ctx.command_path} COMMAND {option} {OF_COMMANDS[option]}"
    return click.UsageError(text, error.ctx)


def report_error(error: StreamsAppError) -> None:
    """Print an error to stderr, each of its faults on a separate line."""
    if isinstance(error, ConfigurationError) and len(error.faults) > 1:
        click.echo("\n  ".join(["error:", *error.faults]), err=True)
    else:
        click.echo(f"error: {error}", err=True)


def run_server(serve: Callable[[], None], log_format: str) -> NoReturn:
    """Run a server until a signal or an error ends it, report the error in the format of the log, and end the process."""
    from streams_app.process_exit import exit_now

    try:
        serve()
    except StreamsAppError as error:
        if log_format == "json":
            logging.getLogger(__name__).critical("%s", error)
        else:
            report_error(error)
        exit_now(error.exit_code)
    exit_now(0)
