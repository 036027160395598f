"""Sets up the environment of the demo (servers, topics, tables, settings, worker and hub) and removes it at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
from pydantic import ValidationError

from streams_app.clock import Clock
from streams_app.demo.removal import remove_all
from streams_app.demo.write_side import SUM
from streams_app.embedded import Broker, Valkey
from streams_app.embedded.child import Child
from streams_app.embedded.ports import free_port
from streams_app.errors import ConfigurationError, InternalError
from streams_app.fold import Fold
from streams_app.operations.read_store_status import create_tables
from streams_app.operations.topics import create_missing_topics
from streams_app.settings import Settings

FOLD: Final = "account-metrics"
STORE: Final = "dashboard"
JOURNAL: Final = "accounts"
DEMO_FOLDER: Final = "DEMO_FOLDER"
"""Environment variable in which the subscriber of the demo finds the folder of the databases."""

PARTITIONS: Final = 4
READY_MS: Final = 60_000
STOP_GRACEFULLY_SECONDS: Final = 22.0
STOP_AT_ONCE_SECONDS: Final = 3.0
QUIET_PERIOD: Final = "3s"
MAX_HOLD: Final = "10s"
SHOWN_FOR: Final = "20s"
"""Time for which the live page shows an update, a folded record or an open tab."""

LISTENS: Final = re.compile(r"http listens url=(\S+)")
CONSOLE: Final = re.compile(r"the console is served url=(\S+)")
SERVES: Final = re.compile(r"live views are served url=(\S+)")

TEMPLATE: Final = """\
app_id = "{app_id}"

[kafka]
bootstrap_servers = "{bootstrap}"
session_timeout = "6s"
partitions = {partitions}

[redis]
url = "{redis}"

[http]
port = {http_port}

[worker]
tick = "250ms"
commit_every = "1s"

[folds.{fold}]
source = "{source}"
group_key = {group_key}
changed = {changed}
quiet_period = "{quiet_period}"
max_hold = "{max_hold}"

[events]
catalogue = "streams_app.demo.recomputing:catalogue"

[read_stores.{store}]
url = "sqlite:///{folder}/read.db"
folds = ["{fold}"]
source = "sql"
source_url = "sqlite:///{folder}/write.db"
sql = \"\"\"{sql}\"\"\"

[journals.{journal}]
source = "{source}"
key = {group_key}
max_bytes = 200_000_000

[live.updates]
kind = "count"
source = "{source}"
page = {group_key}
expiry = "{shown_for}"
public = true

[live.folded_records]
kind = "list"
source = "{source}.{fold}"
page = {group_key}
payload = [{changed}, "fold.events"]
expiry = "{shown_for}"
public = true

[live.people]
kind = "presence"
expiry = "{shown_for}"
public = true

[live_server]
port = 0
"""


@dataclass(frozen=True, slots=True)
class Servers:
    """Broker and Redis of the demo.

    Attributes:
        are_ours: Whether both servers are embedded and end with the demo. If not, the demo removes its topics and keys at the end.
    """

    bootstrap: str
    broker: str
    redis_url: str
    redis: str
    are_ours: bool


@contextlib.contextmanager
def servers(bootstrap: str | None, redis_url: str | None, folder: Path) -> Iterator[Servers]:
    """Provide the servers for the ``with`` block. A server that is not given is embedded, with its data in the folder."""
    with contextlib.ExitStack() as stack:
        if bootstrap is None:
            broker = stack.enter_context(Broker.start(directory=folder / "broker"))
            bootstrap, broker_text, ours = broker.bootstrap_servers, broker.description, True
        else:
            broker_text, ours = f"yours, at {bootstrap}", False
        if redis_url is None:
            valkey = stack.enter_context(Valkey.start(directory=folder / "valkey"))
            redis_url, redis_text = valkey.url, valkey.description
        else:
            redis_text, ours = "yours", False
        yield Servers(bootstrap, broker_text, redis_url, redis_text, ours)


def demo_fold(*, group_key: str, changed: str) -> Fold:
    """Return the fold of the demo. It needs no server, so events can be checked by it before any is started.

    Raises:
        ConfigurationError: A fold cannot have this group key or changed field.
    """
    try:
        return Fold(name=FOLD, source="events", group_key=group_key, changed=changed, quiet_period=QUIET_PERIOD, max_hold=MAX_HOLD)
    except ValidationError as error:
        text = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigurationError([f"--group-key {group_key} --changed {changed}: {text}"]) from error


def demo_settings(on: Servers, folder: Path, *, group_key: str, changed: str) -> tuple[Path, Settings]:
    """Write ``streams.toml``, and return its path and settings. On servers of the user, topics and keys get unique names."""
    app_id = "demo" if on.are_ours else f"demo-{secrets.token_hex(4)}"
    source = "post-metric-updated" if on.are_ours else f"{app_id}.post-metric-updated"
    path = folder / "streams.toml"
    path.write_text(
        TEMPLATE.format(
            app_id=app_id, bootstrap=on.bootstrap, redis=on.redis_url, partitions=PARTITIONS, fold=FOLD, store=STORE, source=source,
            journal=JOURNAL, http_port=free_port(),
            group_key=json.dumps(group_key), changed=json.dumps(changed), quiet_period=QUIET_PERIOD, max_hold=MAX_HOLD,
            folder=folder, sql=SUM, shown_for=SHOWN_FOR,
        ),
        "utf-8",
    )  # fmt: skip
    return path, Settings.load(path, {})


@contextlib.asynccontextmanager
async def topics_and_tables(settings: Settings, on: Servers) -> AsyncIterator[None]:
    """Create the topics and the read store for the ``async with`` block.

    After the block, topics, consumer groups and keys are removed from servers of the user.
    """
    await create_missing_topics(settings)
    await create_tables(settings.read_store(STORE))
    try:
        yield
    finally:
        if not on.are_ours:
            await remove_all(settings)


class DemoProcess:
    """A ``streams-app`` command that runs as a separate process; ``url`` is empty until ``listens`` finds it in its log."""

    def __init__(
        self, name: str, command: Sequence[str], listens: re.Pattern[str], config: Path, folder: Path, **environment: str
    ) -> None:
        self._name = name
        self._listens = listens
        line = [sys.executable, "-m", "streams_app", *command, "--config", str(config)]
        self._child = Child(name, line, folder / name, {DEMO_FOLDER: str(folder), **environment})
        self.url = ""

    async def ready(self, clock: Clock) -> None:
        """Wait until the process is ready: it listens, and a worker has claimed its partitions.

        Raises:
            InternalError: The process ended, or was not ready within :data:`READY_MS`. The message has the end of the log.
        """
        deadline_ms = clock.monotonic_ms() + READY_MS
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            while clock.monotonic_ms() < deadline_ms:
                self.check()
                if await self._is_ready(session):
                    return
                await asyncio.sleep(0.1)
        raise InternalError(f"the {self._name} did not become ready; its log ends with:\n{self._child.log_tail()}")

    def check(self) -> None:
        if not self._child.is_running:
            raise InternalError(f"the {self._name} ended; its log ends with:\n{self._child.log_tail()}")

    def stop(self, *, at_once: bool = False) -> None:
        """Send SIGTERM, and wait for the end of the process: up to 22 s, or up to 3 s with ``at_once``; then kill it."""
        self._child.stop(STOP_AT_ONCE_SECONDS if at_once else STOP_GRACEFULLY_SECONDS)

    def _is_listening(self) -> bool:
        if not self.url:
            found = self._listens.search(self._child.log_path.read_text("utf-8", errors="replace"))
            self.url = found[1] if found else ""
        return bool(self.url)

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        return self._is_listening()


class WorkerProcess(DemoProcess):
    """Worker process, started as in production. It is ready when it has claimed its partitions."""

    def __init__(self, config: Path, folder: Path) -> None:
        super().__init__("worker", ["worker"], LISTENS, config, folder)

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        if not self._is_listening():
            return False
        try:
            async with session.get(f"{self.url}/health/ready") as reply:
                return reply.status == 200  # noqa: PLR2004  # OK
        except (aiohttp.ClientError, TimeoutError):
            return False


class HubProcess(DemoProcess):
    """Hub process, which serves the live views of the demo to browsers."""

    def __init__(self, config: Path, folder: Path) -> None:
        # The port of the settings is that of the worker, which may start later.
        super().__init__("hub", ["live", "serve", "--page"], SERVES, config, folder, STREAMS_APP_HTTP_PORT="0")


class ConsoleProcess(DemoProcess):
    """Console process, on which the demo is seen in a browser."""

    def __init__(self, config: Path, folder: Path) -> None:
        super().__init__("console", ["console"], CONSOLE, config, folder)


@contextlib.contextmanager
def stage_folder() -> Iterator[Path]:
    """Create a temporary folder for settings, databases and logs. The folder is removed after the ``with`` block."""
    # Errors are ignored, because a child that is being killed may still write into the folder.
    with tempfile.TemporaryDirectory(prefix="streams-app-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
