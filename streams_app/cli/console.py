"""``streams-app console``: serves the web pages on which operators see an application."""

from __future__ import annotations

import logging
from typing import Any

import click

from streams_app.cli import report_error
from streams_app.cli.options import with_settings
from streams_app.errors import ConfigurationError, StreamsAppError
from streams_app.settings import Settings


@click.command(name="console")
@with_settings
@click.option("--listen", metavar="HOST:PORT", help="Listen here, instead of at console.listen.")
@click.option("--worker", "workers", multiple=True, metavar="HOST:PORT", help="Show this worker, instead of console.workers.")
@click.option("--allow-actions", is_flag=True, help="Have actions, as console.allow_actions does.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="As for worker.")
def command(
    settings: Settings, listen: str | None, workers: tuple[str, ...], allow_actions: bool, log_level: str, log_format: str
) -> None:  # fmt: skip
    """Serve web pages on which the application is seen.

    They show whether all is well and why not, what flows through each fold, and why a group is open.

    A process of its own, which reads the metrics of workers, Redis and Kafka. It is a member of no group: it can start, stop and
    run several times without any effect on a worker. Each page is also JSON, with .json or Accept: application/json; /openapi.json
    describes it.

    It changes nothing, unless --allow-actions is given: then groups can be flushed and dropped, dead letters replayed, subscribers
    reset and read stores repaired, as by the commands.

    Without console.token_file it listens on this machine only. With several workers, --worker or console.workers names them: a
    DNS name that has several addresses stands for several workers.

    \b
        streams-app console                             the worker on this machine, at http://127.0.0.1:8091
        streams-app console --listen 127.0.0.1:9000 --worker worker-1:8080 --worker worker-2:8080
        curl -s http://127.0.0.1:8091/overview.json     whether all is well, for programs
    """  # noqa: D301  # \b is for click: keep these lines as they are
    from streams_app.console.serving import serve_console
    from streams_app.logs import set_up_logging
    from streams_app.process_exit import exit_now

    chosen = with_options(settings, listen, workers, allow_actions=allow_actions)
    set_up_logging(log_level, log_format)
    try:
        serve_console(chosen)
    except StreamsAppError as error:
        if log_format == "json":
            logging.getLogger(__name__).critical("%s", error)
        else:
            report_error(error)
        exit_now(error.exit_code)
    exit_now(0)


def with_options(
    settings: Settings, listen: str | None, workers: tuple[str, ...], *, allow_actions: bool = False
) -> Settings:  # fmt: skip
    """Return the settings with the options of the command in the place of those of ``[console]``.

    Raises:
        ConfigurationError: The value of an option is invalid.
    """
    from pydantic import ValidationError

    from streams_app.settings import ConsoleSettings

    given: dict[str, Any] = {key: getattr(settings.console, key) for key in settings.console.model_fields_set}
    given |= {"listen": listen} if listen else {}
    given |= {"workers": workers} if workers else {}
    given |= {"allow_actions": True} if allow_actions else {}
    try:
        return settings.model_copy(update={"console": ConsoleSettings(**given)})
    except ValidationError as error:
        raise ConfigurationError([fault["msg"].removeprefix("Value error, ") for fault in error.errors()]) from error
