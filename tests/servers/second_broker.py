"""A second broker beside one node of Apache Kafka: it leads partitions and can be killed, while the controller continues."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from streams_app.embedded.broker import _metadata
from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.embedded.server import EmbeddedServer, start_on_a_port
from tests.servers.apache_kafka import NAME, START_LIMIT_MS, TAKEN, ApacheKafka, Proxied, format_node, named, properties, run_node


class SecondBroker(EmbeddedServer):
    """A running broker of a cluster whose first node is the controller.

    Attributes:
        port: Where clients connect.
    """

    NODE = 2

    def __init__(self, child: Child, port: int) -> None:
        super().__init__(child)
        self.port = port
        self.description = f"{NAME} (second broker)"

    @classmethod
    def start(cls, first: ApacheKafka, home: Path, port: int | None = None) -> Self:
        """Start it and return when each broker names both.

        Args:
            first: The node to join. If this broker was killed before, the node must have detected that.
            home: Folder of its data and log, which is kept at the end and used by the next start.
            port: ``None``: a free one.

        Raises:
            EmbeddedServerError: It did not start; the message shows its log.
        """
        return start_on_a_port(port, lambda chosen: cls._start_once(first, home, chosen), taken=TAKEN)

    @classmethod
    def _start_once(cls, first: ApacheKafka, home: Path, port: int) -> Self:
        home.mkdir(parents=True, exist_ok=True)
        values = {
            **properties(1, port, {1: first.controller_port}, home / "data"),
            "process.roles": "broker",
            "node.id": str(cls.NODE),
            "listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        }
        # A client that connects to the first node through a proxy only learns of brokers with a listener of that name.
        through = free_port()
        format_node(home, Proxied(through, through).added_to(values), first.cluster_id)
        child = run_node(f"kafka-{cls.NODE}", home)
        both = named(port), named(first.port)
        child.wait_until_ready(
            lambda: all(each in _metadata(asked) for asked in (port, first.port) for each in both), START_LIMIT_MS
        )
        return cls(child, port)
