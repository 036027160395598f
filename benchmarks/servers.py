"""The servers of a benchmark: the embedded ones, Apache Kafka and Redis 7 as in the tests, or servers given by address."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis

from benchmarks.standstill import Standstills, watched
from streams_app.embedded import Broker, Valkey
from streams_app.folding.store.keys import APP_PATTERN
from streams_app.folding.store.scripts import FoldScripts

SLOW_MS: Final = 20


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses and versions of the servers, their process ids if the benchmark started them, and standstills of the machine."""

    bootstrap: str
    broker: str
    broker_pid: int | None
    redis_url: str
    redis: str
    redis_pid: int | None
    standstills: Standstills

    def client(self) -> Redis:
        """Return a blocking client, for requests outside of a measurement."""
        return Redis.from_url(self.redis_url)

    def used_memory(self) -> int:
        """Return the bytes that Redis has allocated."""
        with self.client() as client:
            return int(client.info("memory")["used_memory"])

    def command_calls(self) -> dict[str, int]:
        """Return the calls by command since Redis started, including calls in scripts."""
        with self.client() as client:
            stats = client.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(about["calls"]) for name, about in stats.items()}

    def slow_commands(self) -> dict[str, Any]:
        """How many of the last 128 slow commands took over 20 ms, and the longest, with the name of a script; forgets them.

        By default, Redis logs commands that take over 10 ms: 0 means less than that. The result also has the number of those over
        20 ms that would have taken less without a standstill of a core in the same second, see :mod:`benchmarks.standstill`.
        """
        with self.client() as client:
            found = [
                (entry["duration"] / 1000, _name(entry["command"]), int(entry["start_time"])) for entry in client.slowlog_get(128)
            ]
            client.slowlog_reset()
        longest_ms, name, _ = max(found, default=(0.0, "", 0))
        over = [(duration_ms, ended) for duration_ms, _, ended in found if duration_ms >= SLOW_MS]
        figures: dict[str, Any] = {"over_20_ms": len(over), "longest_ms": round(longest_ms)}
        if name:
            figures["longest"] = name
        if over:
            # Redis logs the second in which a command ended.
            still = [(took, self.standstills.longest_ms(ended - took / 1000, ended + 1)) for took, ended in over]
            figures["of_them_by_a_standstill"] = sum(ms is not None and took - ms < SLOW_MS for took, ms in still)
            figures["longest_standstill_ms"] = max((ms for _, ms in still if ms is not None), default=None)
        return figures

    @contextmanager
    def write_pause(self, limit_seconds: float) -> Iterator[None]:
        """Delay commands that write, and scripts, until the end of the block, or for this number of seconds."""
        with self.client() as client:
            client.client_pause(round(limit_seconds * 1000), all=False)
            try:
                yield
            finally:
                client.client_unpause()

    def forget(self, app_id: str) -> None:
        """Delete every key of an application."""
        with self.client() as client:
            batch: list[bytes] = []
            for key in client.scan_iter(APP_PATTERN.format(app_id=app_id), count=5_000):
                batch.append(key)
                if len(batch) == 5_000:
                    client.unlink(*batch)
                    batch.clear()
            if batch:
                client.unlink(*batch)


_SCRIPTS = {
    hashlib.sha1(FoldScripts.source(name).encode(), usedforsecurity=False).hexdigest(): f"{name}.lua"
    for name in FoldScripts.names()
}


def _name(command: bytes) -> str:
    """Return the script of an EVALSHA, otherwise the command."""
    words = command.decode("utf-8", errors="replace").split(maxsplit=2)
    return _SCRIPTS.get(words[1], words[0]) if len(words) > 1 else "".join(words)


@contextmanager
def started(kafka: str, redis_choice: str) -> Iterator[Servers]:
    """Start the requested servers; stop them at the end of the block.

    Args:
        kafka: ``embedded``, ``apache`` or HOST:PORT.
        redis_choice: ``valkey``, ``redis`` or a URL.
    """
    with ExitStack() as stack:
        bootstrap, broker, broker_pid = _kafka(kafka, stack)
        redis_url, redis_text, redis_pid = _redis(redis_choice, stack)
        standstills = stack.enter_context(watched())
        yield Servers(bootstrap, broker, broker_pid, redis_url, redis_text, redis_pid, standstills)


def _kafka(choice: str, stack: ExitStack) -> tuple[str, str, int | None]:
    if choice == "embedded":
        embedded = stack.enter_context(Broker.start())
        return embedded.bootstrap_servers, embedded.description, embedded.pid
    if choice == "apache":
        from tests.servers.apache_kafka import ApacheKafka  # the tests are not installed with the package

        apache = stack.enter_context(ApacheKafka.start())
        return apache.bootstrap_servers, apache.description, apache.pid
    return choice, f"Kafka at {choice}", None


def _redis(choice: str, stack: ExitStack) -> tuple[str, str, int | None]:
    if choice == "valkey":
        valkey = stack.enter_context(Valkey.start())
        return valkey.url, valkey.description, valkey.pid
    if choice == "redis":
        from tests.servers.redis7 import Redis7  # as above

        redis7 = stack.enter_context(Redis7.start())
        return redis7.url, redis7.description, redis7.pid
    return choice, "Redis as given", None
