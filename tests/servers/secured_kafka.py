"""Apache Kafka whose clients need TLS and a password (SASL_SSL, SCRAM-SHA-512); tests use another listener for set-up."""

from __future__ import annotations

import shutil
import socket
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.embedded.server import EmbeddedServer, start_on_a_port
from tests.servers.apache_kafka import NAME, START_LIMIT_MS, TAKEN, cluster_id, fetch, format_node, properties, run_node
from tests.servers.tls import Authority

ADMIN = "admin"
WITH_RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{ADMIN};User:ANONYMOUS",
}
"""Users have only their granted rights; clients of the listener for tests have all rights."""


class SecuredKafka(EmbeddedServer):
    """A running Apache Kafka of one node with two listeners.

    Attributes:
        secured_servers: host:port of the listener with TLS and passwords.
        bootstrap_servers: host:port of the listener without, to create and read topics.
    """

    is_apache = True

    def __init__(self, child: Child, port: int, open_port: int, home: Path) -> None:
        super().__init__(child)
        self._home = home
        self.secured_servers = f"{LOOPBACK}:{port}"
        self.bootstrap_servers = f"{LOOPBACK}:{open_port}"
        self.description = f"{NAME} (one node, SASL_SSL)"

    @staticmethod
    def start(authority: Authority, passwords: Mapping[str, str], given: Mapping[str, str] | None = None) -> SecuredKafka:
        """Start it and return when it answers over TLS.

        Args:
            authority: Signs its certificate.
            passwords: Password of each user; every user has all rights.
            given: Further properties, as :data:`WITH_RIGHTS`.

        Raises:
            ServerUnavailableError: No Java, or the jars cannot be fetched.
            EmbeddedServerError: It did not start; the message shows its log.
        """
        fetch()
        keystore = authority.keystore("kafka")

        def start_once(port: int) -> SecuredKafka:
            home = Path(tempfile.mkdtemp(prefix="streams-app-secured-"))
            ports = (port, free_port(), free_port())
            try:
                child = _start(ports, home, {**_secured(ports, keystore, authority, passwords), **(given or {})}, passwords)
            except BaseException:
                shutil.rmtree(home, ignore_errors=True)
                raise
            return SecuredKafka(child, port, ports[1], home)

        return start_on_a_port(None, start_once, taken=TAKEN)

    def stop(self) -> None:
        """End it and wait for the end; a second call does nothing."""
        super().stop()
        shutil.rmtree(self._home, ignore_errors=True)


def _secured(ports: tuple[int, int, int], keystore: Path, authority: Authority, passwords: Mapping[str, str]) -> dict[str, str]:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    clients = f"SASL_SSL://{LOOPBACK}:{ports[0]},PLAINTEXT://{LOOPBACK}:{ports[1]}"
    return {
        "listeners": f"{clients},CONTROLLER://{LOOPBACK}:{ports[2]}",
        "advertised.listeners": clients,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
        "inter.broker.listener.name": "SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f'{login} username="{ADMIN}" password="{passwords[ADMIN]}";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }


def _start(
    ports: tuple[int, int, int],
    home: Path,
    secured: Mapping[str, str],
    passwords: Mapping[str, str],
) -> Child:
    values = {**properties(1, ports[0], {1: ports[2]}, home / "data"), **secured}
    users = [word for name, password in passwords.items() for word in _scram(name, password)]
    format_node(home, values, cluster_id(home), users)
    child = run_node("kafka", home)
    context = ssl.create_default_context(cafile=secured["ssl.truststore.location"])

    def is_ready() -> bool:
        # Only this test uses the authority, so the server that answers with it is our child.
        with (
            socket.create_connection((LOOPBACK, ports[0]), timeout=2) as plain,
            context.wrap_socket(plain, server_hostname=LOOPBACK),
        ):
            return True

    child.wait_until_ready(is_ready, START_LIMIT_MS)
    return child


def _scram(name: str, password: str) -> list[str]:
    return ["--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]"]
