"""Secrets of tests, and a search for them in texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.helpers.worker.site import Stage
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.secured_kafka import SecuredKafka
from tests.servers.tls import Authority

CANARIES = {
    kind: f"canary-{kind}-5d81c0" for kind in ("kafka", "redis", "http", "redis-url", "read-url", "source-url", "broker", "wrong")
}


def secret(folder: Path, kind: str) -> str:
    """Write a secret to a file, and return its path."""
    path = folder / f"{kind}.secret"
    path.write_text(f"{CANARIES[kind]}\n", "utf-8")
    return str(path)


def secrets_in(text: str) -> list[str]:
    """Return the secrets that a text contains."""
    return [canary for canary in CANARIES.values() if canary in text]


def kafka_variables(secured: SecuredKafka, authority: Authority, folder: Path, password: str = "kafka") -> dict[str, str]:
    """Return the environment of a worker that uses the listener with TLS and passwords."""
    return {
        "STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS": secured.secured_servers,
        "STREAMS_APP_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "STREAMS_APP_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "STREAMS_APP_KAFKA_SASL_USERNAME": "worker",
        "STREAMS_APP_KAFKA_SASL_PASSWORD_FILE": secret(folder, password),
        "STREAMS_APP_KAFKA_SSL_CAFILE": str(authority.certificate),
    }


def debug(stage: Stage, variables: Mapping[str, str]) -> WorkerProcess:
    return WorkerProcess(stage.folder / "streams.toml", stage.folder, variables, ["--log-level", "debug"])
