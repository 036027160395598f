"""Apache Kafka whose clients need a token (SASL/OAUTHBEARER), and an issuer of tokens; tests reach it by another listener."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.embedded.server import EmbeddedServer, start_on_a_port
from tests.servers.apache_kafka import NAME, START_LIMIT_MS, TAKEN, cluster_id, fetch, format_node, properties, run_node

ISSUER = "https://issuer.test"
AUDIENCE = "kafka"
_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator"
_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;"


class Issuer:
    """Signs tokens with a key of its own."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)

    def token(self, *, seconds: float = 3600, subject: str = "worker", **claims: Any) -> str:
        """Return a token that expires after some seconds; ``claims`` replace its own."""
        now = int(time.time())
        own = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": now - 1, "exp": now + int(seconds)}
        return jwt.encode({**own, **claims}, self._key, algorithm="RS256", headers={"kid": "test"})

    def jwks(self) -> str:
        """Return the public key as a JSON Web Key Set."""
        return json.dumps(
            {"keys": [{**json.loads(RSAAlgorithm.to_jwk(self._key.public_key())), "kid": "test", "use": "sig", "alg": "RS256"}]}
        )


class OAuthKafka(EmbeddedServer):
    """A running Apache Kafka of one node with two listeners.

    Attributes:
        oauth_servers: host:port of the listener that wants tokens.
        bootstrap_servers: host:port of the one that wants nothing.
    """

    is_apache = True

    def __init__(self, child: Child, port: int, open_port: int, home: Path) -> None:
        super().__init__(child)
        self._home = home
        self.oauth_servers = f"{LOOPBACK}:{port}"
        self.bootstrap_servers = f"{LOOPBACK}:{open_port}"
        self.description = f"{NAME} (one node, SASL/OAUTHBEARER)"

    @staticmethod
    def start(issuer: Issuer, reauthentication_ms: int) -> OAuthKafka:
        """Start it and return when it answers.

        Args:
            issuer: Its tokens are accepted.
            reauthentication_ms: ``connections.max.reauth.ms``: connections are closed after this, or when their token expires.

        Raises:
            ServerUnavailableError: No Java, or the jars cannot be fetched.
            EmbeddedServerError: It did not start; the message shows its log.
        """
        fetch()

        def start_once(port: int) -> OAuthKafka:
            home = Path(tempfile.mkdtemp(prefix="streams-app-oauth-"))
            keys = home / "jwks.json"
            keys.write_text(issuer.jwks(), "utf-8")
            ports = (port, free_port(), free_port())
            try:
                child = _start(ports, home, keys.as_uri(), reauthentication_ms)
            except BaseException:
                shutil.rmtree(home, ignore_errors=True)
                raise
            return OAuthKafka(child, port, ports[1], home)

        return start_on_a_port(None, start_once, taken=TAKEN)

    def stop(self) -> None:
        """End it and wait for the end; a second call does nothing."""
        super().stop()
        shutil.rmtree(self._home, ignore_errors=True)


def _start(ports: tuple[int, int, int], home: Path, keys: str, reauthentication_ms: int) -> Child:
    clients = f"SASL_PLAINTEXT://{LOOPBACK}:{ports[0]},PLAINTEXT://{LOOPBACK}:{ports[1]}"
    mechanism = {
        "sasl.jaas.config": _LOGIN,
        "sasl.server.callback.handler.class": _HANDLER,
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.clock.skew.seconds": "0",
        "connections.max.reauth.ms": str(reauthentication_ms),
    }
    values = {
        **properties(1, ports[0], {1: ports[2]}, home / "data"),
        "listeners": f"{clients},CONTROLLER://{LOOPBACK}:{ports[2]}",
        "advertised.listeners": clients,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.sasl_plaintext.sasl.oauthbearer.jwt.validator.class": _VALIDATOR,
        **{f"listener.name.sasl_plaintext.oauthbearer.{name}": value for name, value in mechanism.items()},
    }
    format_node(home, values, cluster_id(home), [])
    child = run_node("kafka", home, [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"])

    def is_ready() -> bool:
        return all(_answers(port) for port in ports[:2])

    child.wait_until_ready(is_ready, START_LIMIT_MS)
    return child


def _answers(port: int) -> bool:
    with socket.create_connection((LOOPBACK, port), timeout=2):
        return True
