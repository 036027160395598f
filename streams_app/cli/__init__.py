"""``streams-app``: one file per command, imported when the command is run.

Exit codes: 0 ended well, 1 usage or configuration, 70 internal failure, 75 try again (a supervisor restarts it).
"""

from __future__ import annotations

import importlib
import io
import logging
import sys
from typing import Final

import click

from streams_app.errors import ConfigurationError, InternalError, StreamsAppError

COMMANDS: Final = {
    "demo": "streams_app.cli.demo",
    "worker": "streams_app.cli.worker",
    "check": "streams_app.cli.check",
    "topics": "streams_app.cli.topics",
    "groups": "streams_app.cli.groups",
    "tune": "streams_app.cli.tune",
    "dead-letters": "streams_app.cli.dead_letters",
    "reset": "streams_app.cli.reset",
    "read-store": "streams_app.cli.read_store",
    "events": "streams_app.cli.events",
    "live": "streams_app.cli.live",
    "journal": "streams_app.cli.journal",
}

OF_COMMANDS: Final = {"--config": "FILE", "--app": "MODULE:APP", "-A": "MODULE:APP"}
"""Options that nearly every command has → what each takes."""


class _LazyGroup(click.Group):
    """Imports a command when it runs: ``--help`` should not load Faust."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for an unknown name suggest the nearest one."""
        if args[0] not in COMMANDS:
            from streams_app.settings.base import suggestion  # the help does without pydantic

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
    """Run a command and end the process with its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a key must not end a command because the terminal has no letter for it
    # What it warns of reaches the user as an error of the command; a worker sets up logging of its own.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command; errors are reported on stderr.

    Returns:
        The exit code.
    """
    try:
        result = group.main(args=arguments, prog_name="streams-app", standalone_mode=False)
    except StreamsAppError as error:
        report_error(error)
        return error.exit_code
    except click.ClickException as error:
        _hinting(error).show()  # no arguments at all: the help
        return ConfigurationError.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except Exception:  # a fault of ours: told with its trace, by an exit code of its own
        logging.getLogger(__name__).exception("internal failure")
        return InternalError.exit_code
    return result if isinstance(result, int) else 0


def _hinting(error: click.ClickException) -> click.ClickException:
    """Return an error with a hint: an option that stands before the command belongs after it."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return error
    if (option := error.option_name) not in OF_COMMANDS:
        return error
    text = f"{option} must follow the command: {error.ctx.command_path} COMMAND {option} {OF_COMMANDS[option]}"
    return click.UsageError(text, error.ctx)


def report_error(error: StreamsAppError) -> None:
    """Report an error on stderr, each fault on a line of its own."""
    if isinstance(error, ConfigurationError) and len(error.faults) > 1:
        click.echo("\n  ".join(["error:", *error.faults]), err=True)
    else:
        click.echo(f"error: {error}", err=True)
