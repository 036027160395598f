"""Three nodes of Apache Kafka, each broker and controller: every topic is on all of them, two must have a record."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from streams_app.embedded.broker import _metadata
from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.errors import TryAgainError
from tests.helpers.waiting import wait_until_sync
from tests.servers.apache_kafka import NAME, cluster_id, fetch, format_node, properties, run_node

NODES = (1, 2, 3)

_START_LIMIT_SECONDS = 90
# A missing node is detected after three seconds instead of nine and thirty.
_NOTICED_SOON = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
}


class KafkaCluster:
    """A running cluster; a context manager that ends it.

    Attributes:
        bootstrap_servers: Of all nodes.
        nodes: Node id → the process, of every node that was not killed.
    """

    is_apache = True
    description = f"{NAME} (three nodes)"

    def __init__(self) -> None:
        fetch()
        self._home = Path(tempfile.mkdtemp(prefix="streams-app-cluster-"))
        self._ports = {node: free_port() for node in NODES}
        self._controllers = {node: free_port() for node in NODES}
        self.nodes: dict[int, Child] = {}
        self.bootstrap_servers = ",".join(f"{LOOPBACK}:{port}" for port in self._ports.values())

    @classmethod
    def start(cls) -> Self:
        """Start it and return when each node names all of them.

        Raises:
            ServerUnavailableError: No Java, or the jars cannot be fetched.
            TryAgainError: It did not start; the message shows the logs.
        """
        cluster = cls()
        try:
            for node in NODES:
                cluster._format(node)
            for node in NODES:
                cluster.start_node(node)
            cluster.wait_complete()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def _format(self, node: int) -> None:
        home = self._home / str(node)
        home.mkdir()
        values = {**properties(node, self._ports[node], self._controllers, home / "data"), **_NOTICED_SOON}
        format_node(home, values, cluster_id(self._home))

    def start_node(self, node: int) -> None:
        """Start a node, for the first time or on the data of one that was killed; it joins later."""
        self.nodes[node] = run_node(f"kafka-{node}", self._home / str(node))

    def wait_complete(self) -> None:
        """Wait until every node names every node."""

        def knows_all(node: int) -> bool:
            try:
                answer = _metadata(self._ports[node])
            except OSError:
                return False
            return all(port.to_bytes(4, "big") in answer for port in self._ports.values())

        try:
            wait_until_sync(lambda: all(knows_all(node) for node in NODES), _START_LIMIT_SECONDS, "all nodes know each other")
        except AssertionError as error:
            logs = "\n".join(f"{child.name}: {child.log_tail()}" for child in self.nodes.values())
            raise TryAgainError(f"{error}\n{logs}") from None

    def kill_node(self, node: int) -> None:
        """SIGKILL, as a crash would end it; its data stays."""
        self.nodes.pop(node).kill()

    def stop(self) -> None:
        """End all nodes; a second call does nothing."""
        # Killed together: after a graceful stop one by one, the last nodes would wait for a missing quorum.
        for child in self.nodes.values():
            child.kill()
        self.nodes.clear()
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()
