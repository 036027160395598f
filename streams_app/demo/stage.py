"""The demo's stage: servers, topics, tables, settings and a worker process; all of it gone at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
from aiokafka.errors import KafkaError

from streams_app.clock import Clock
from streams_app.demo.write_side import SUM
from streams_app.embedded import Broker, Valkey
from streams_app.embedded.child import Child
from streams_app.errors import InternalError, TryAgainError, text_of
from streams_app.folding.connection import REDIS_ERRORS, connect
from streams_app.folding.keys import APP_PATTERN
from streams_app.kafka.admin import admin_client, create_topics, topics_of
from streams_app.read_store.store import open_store
from streams_app.settings import Settings

logger = logging.getLogger(__name__)

FOLD: Final = "account-metrics"
PARTITIONS: Final = 4
READY_MS: Final = 60_000
STOP_SECONDS: Final = 22.0
LISTENS: Final = re.compile(r"http listens url=(\S+)")

TEMPLATE: Final = """\
app_id = "{app_id}"

[kafka]
bootstrap_servers = "{bootstrap}"
session_timeout = "6s"
partitions = {partitions}

[redis]
url = "{redis}"

[http]
port = 0

[worker]
tick = "250ms"
commit_every = "1s"

[folds.{fold}]
source = "{source}"
group_key = "{group_key}"
changed = "{changed}"
quiet_period = "3s"
max_hold = "10s"

[read_store]
url = "sqlite:///{folder}/read.db"
folds = ["{fold}"]
source = "sql"
source_url = "sqlite:///{folder}/write.db"
sql = \"\"\"{sql}\"\"\"
"""


@dataclass(frozen=True, slots=True)
class Servers:
    """What the demo runs on.

    Attributes:
        bootstrap: host:port of the broker.
        broker: What it is, for people.
        redis_url: Of Redis.
        redis: What it is, for people.
        are_ours: Both end with the demo; otherwise topics and keys are removed one by one.
    """

    bootstrap: str
    broker: str
    redis_url: str
    redis: str
    are_ours: bool


@contextlib.contextmanager
def servers(bootstrap: str | None, redis_url: str | None) -> Iterator[Servers]:
    """Embedded servers, or those that were named."""
    with contextlib.ExitStack() as stack:
        if bootstrap is None:
            broker = stack.enter_context(Broker.start())
            bootstrap, broker_text, ours = broker.bootstrap_servers, broker.description, True
        else:
            broker_text, ours = f"yours, at {bootstrap}", False
        if redis_url is None:
            valkey = stack.enter_context(Valkey.start())
            redis_url, redis_text = valkey.url, valkey.description
        else:
            redis_text, ours = "yours", False
        yield Servers(bootstrap, broker_text, redis_url, redis_text, ours)


def demo_settings(on: Servers, folder: Path, *, group_key: str, changed: str) -> tuple[Path, Settings]:
    """Writes ``streams.toml`` and loads it; names are unique where the servers are shared with others."""
    app_id = "demo" if on.are_ours else f"demo-{secrets.token_hex(4)}"
    source = "post-metric-updated" if on.are_ours else f"{app_id}.post-metric-updated"
    path = folder / "streams.toml"
    path.write_text(
        TEMPLATE.format(
            app_id=app_id, bootstrap=on.bootstrap, redis=on.redis_url, partitions=PARTITIONS, fold=FOLD, source=source,
            group_key=group_key, changed=changed, folder=folder, sql=SUM,
        ),
        "utf-8",
    )  # fmt: skip
    return path, Settings.load(path, {})


@contextlib.asynccontextmanager
async def topics_and_tables(settings: Settings, on: Servers) -> AsyncIterator[None]:
    """Makes topics and the read store; removes what it made on servers that live on."""
    await create_topics(settings)
    assert settings.read_store is not None  # the template has one
    store = open_store(settings.read_store)
    await store.initialise()
    await store.close()
    try:
        yield
    finally:
        if not on.are_ours:
            await _remove(settings)


async def _remove(settings: Settings) -> None:
    """Topics and keys of this run; what cannot be removed is named."""
    try:
        async with admin_client(settings.kafka) as client:
            await client.delete_topics([topic.name for topic in topics_of(settings)])
    except (KafkaError, OSError, TryAgainError) as error:
        logger.warning("topics of the demo are left behind prefix=%s error=%r", settings.app_id, error)
    redis = connect(settings.redis)
    try:
        async for key in redis.scan_iter(match=APP_PATTERN.format(app_id=settings.app_id), count=1_000):
            await redis.unlink(key)
    except REDIS_ERRORS as error:
        logger.warning("keys of the demo are left behind prefix=%s error=%s", settings.app_id, text_of(error))
    finally:
        await redis.aclose()


class WorkerProcess:
    """A real worker, as it is deployed: a process of its own."""

    def __init__(self, config: Path, folder: Path) -> None:
        self._child = Child("worker", [sys.executable, "-m", "streams_app", "worker", "--config", str(config)], folder / "worker")
        self.url = ""

    async def ready(self, clock: Clock) -> None:
        """Returns when it has claimed its partitions.

        Raises:
            InternalError: It ended, or did not become ready in time; the message shows its log.
        """
        deadline_ms = clock.monotonic_ms() + READY_MS
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            while clock.monotonic_ms() < deadline_ms:
                self.check()
                if await self._is_ready(session):
                    return
                await asyncio.sleep(0.1)
        raise InternalError(f"the worker did not become ready; its log ends with:\n{self._child.log_tail()}")

    def check(self) -> None:
        """Raises InternalError if the process has ended."""
        if not self._child.is_running:
            raise InternalError(f"the worker ended; its log ends with:\n{self._child.log_tail()}")

    def stop(self) -> None:
        """SIGTERM, and waits for the end."""
        self._child.stop(STOP_SECONDS)

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        if not self.url:
            found = LISTENS.search(self._child.log_path.read_text("utf-8", errors="replace"))
            if found is None:
                return False
            self.url = found[1]
        try:
            async with session.get(f"{self.url}/health/ready") as reply:
                return reply.status == 200  # noqa: PLR2004  # OK
        except (aiohttp.ClientError, TimeoutError):
            return False


@contextlib.contextmanager
def stage_folder() -> Iterator[Path]:
    """A folder for settings, databases and logs; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="streams-app-demo-") as folder:
        yield Path(folder)
