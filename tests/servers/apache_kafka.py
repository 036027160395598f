"""Apache Kafka itself: its jars come from Maven, one node runs as broker and controller."""

from __future__ import annotations

import base64
import shutil
import struct
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from streams_app.embedded.broker import _metadata
from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.embedded.server import EmbeddedServer, start_on_a_port
from tests.servers.cache import CACHE, Progress, ServerUnavailableError, filling, run, silent
from tests.servers.java import fetch_jars, program

VERSION = "4.1.1"
NAME = f"Apache Kafka {VERSION}"
LIBS = CACHE / f"kafka-{VERSION}" / "libs"

START_LIMIT_MS = 60_000
TAKEN = "Address already in use"
"""Line in the log if the port is in use."""

_FORMAT_LIMIT_SECONDS = 60
_PROPERTIES_FILE = "server.properties"

# Without slf4j-simple, no error of the broker is visible. The jars are not pruned, because some classes are only loaded after an
# error.
_ARTIFACTS = [("org.apache.kafka", "kafka_2.13", VERSION), ("org.slf4j", "slf4j-simple", "1.7.36")]


class Proxied(NamedTuple):
    """A second listener that advertises a proxy: clients that connect through the proxy continue to use it.

    Attributes:
        port: Where the broker listens for the proxy.
        proxy_port: Where the proxy listens.
    """

    port: int
    proxy_port: int

    def added_to(self, values: dict[str, str]) -> dict[str, str]:
        """Return the configuration of a node with this listener."""
        return {
            **values,
            "listeners": f"{values['listeners']},PROXIED://{LOOPBACK}:{self.port}",
            "advertised.listeners": f"{values['advertised.listeners']},PROXIED://{LOOPBACK}:{self.proxy_port}",
            "listener.security.protocol.map": f"{values['listener.security.protocol.map']},PROXIED:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }


class ApacheKafka(EmbeddedServer):
    """A running Apache Kafka of one node, with the attributes of the embedded `Broker`.

    Attributes:
        port: Where clients connect.
        controller_port: Where further brokers of its cluster connect.
        cluster_id: What they must be formatted with.
    """

    is_apache = True

    def __init__(self, child: Child, port: int, controller_port: int, cluster: str, temporary: Path | None) -> None:
        super().__init__(child)
        self._temporary = temporary
        self.port, self.controller_port, self.cluster_id = port, controller_port, cluster
        self.bootstrap_servers = f"{LOOPBACK}:{port}"
        self.description = f"{NAME} (one node)"

    @classmethod
    def start(
        cls,
        port: int | None = None,
        directory: Path | None = None,
        proxied: Proxied | None = None,
        given: Mapping[str, str] | None = None,
    ) -> Self:
        """Start it and return when the broker is part of its own cluster.

        Args:
            port: ``None``: a free one.
            directory: For its data and log; kept at the end, and what it holds is served again. ``None``: a temporary one.
            proxied: A second listener, for clients behind a proxy.
            given: Properties that replace those of :func:`properties`.

        Raises:
            ServerUnavailableError: No Java, or the jars cannot be fetched.
            EmbeddedServerError: It did not start; the message shows its log.
        """
        fetch()
        return start_on_a_port(port, lambda chosen: cls._start_once(chosen, directory, proxied, given or {}), taken=TAKEN)

    @classmethod
    def _start_once(cls, port: int, directory: Path | None, proxied: Proxied | None, given: Mapping[str, str]) -> Self:
        temporary = Path(tempfile.mkdtemp(prefix="streams-app-kafka-")) if directory is None else None
        home = directory or temporary
        assert home is not None
        try:
            home.mkdir(parents=True, exist_ok=True)
            controller = free_port()
            cluster = cluster_id(home)
            values = {**properties(1, port, {1: controller}, home / "data"), **given}
            if proxied is not None:
                values = proxied.added_to(values)
            format_node(home, values, cluster)
            child = run_node("kafka", home)
            # The port is open before the broker has joined the cluster; the answer names the broker after that.
            itself = named(port)

            def is_ready() -> bool:
                answer = _metadata(port)
                return cluster.encode() in answer and itself in answer

            child.wait_until_ready(is_ready, START_LIMIT_MS)
        except BaseException:
            _remove(temporary)
            raise
        return cls(child, port, controller, cluster, temporary)

    def kill(self) -> None:
        """SIGKILL, as a crash would end it."""
        super().kill()
        _remove(self._temporary)

    def stop(self) -> None:
        """End it and wait for the end; a second call does nothing."""
        super().stop()
        _remove(self._temporary)


def properties(node: int, port: int, controllers: dict[int, int], data: Path) -> dict[str, str]:
    """The configuration of one node that is both broker and controller.

    Args:
        node: Its id, a key of ``controllers``.
        port: Where clients connect.
        controllers: Node id → controller port, of every node of the cluster.
        data: Its log directory.
    """
    replicas = min(3, len(controllers))
    in_sync = max(1, replicas - 1)
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{each}@{LOOPBACK}:{at}" for each, at in controllers.items()),
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controllers[node]}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(replicas),
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "num.network.threads": "2",
        "num.io.threads": "2",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": "10485760",
    }


def format_node(home: Path, values: Mapping[str, str], cluster: str, more: Sequence[str] = ()) -> None:
    """Write the configuration of a node and make its storage ready; what it holds already stays.

    Args:
        home: The folder of the node.
        values: Its configuration, see :func:`properties`.
        cluster: Id of the cluster.
        more: Further arguments of Kafka's storage tool.

    Raises:
        ServerUnavailableError: No Java, or the tool failed.
    """
    path = home / _PROPERTIES_FILE
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()), "utf-8")
    storage = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster, "-c", str(path), *more]
    run([program("java", NAME), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{fetch()}/*", *storage], _FORMAT_LIMIT_SECONDS)


def run_node(name: str, home: Path, further: Sequence[str] = ()) -> Child:
    """Start a node whose folder :func:`format_node` has prepared, with further options of Java; it joins its cluster later."""
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    command = [program("java", NAME), *options, *further, "-cp", f"{fetch()}/*", "kafka.Kafka", str(home / _PROPERTIES_FILE)]
    return Child(name, command, home)


def named(port: int) -> bytes:
    """Return the text by which a broker's answer about its cluster names the node on this port."""
    return struct.pack(">h", len(LOOPBACK)) + LOOPBACK.encode() + struct.pack(">i", port)


def fetch(progress: Progress = silent) -> Path:
    """Return the directory with the jars; fetch them if they are missing.

    Raises:
        ServerUnavailableError: Java or Maven is missing, or Maven failed.
    """
    program("java", NAME)
    if LIBS.is_dir():
        return LIBS
    maven = program("mvn", NAME)
    progress(f"{NAME}: fetching the jars with Maven (45 files, 43 MB) ...")
    with filling(LIBS.parent) as part:
        if not (fetch_jars(maven, part, _ARTIFACTS) / f"kafka_2.13-{VERSION}.jar").is_file():
            raise ServerUnavailableError("Maven ended well, but there is no Kafka among the jars")
    return LIBS


def cluster_id(home: Path) -> str:
    """Return a unique id, so that the answer proves that our child answers; the stored id if there is data."""
    path = home / "cluster-id"
    if not path.exists():
        name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        path.write_text(f"A{name[1:]}", "utf-8")  # Kafka rejects an id that begins with a dash
    return path.read_text("utf-8")


def _remove(directory: Path | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
