"""Secrets of tests, and whether something tells them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.integration.site import Stage
from tests.workers import WorkerProcess

CANARIES = {
    kind: f"canary-{kind}-5d81c0" for kind in ("kafka", "redis", "http", "redis-url", "read-url", "source-url", "broker", "wrong")
}


def secret(folder: Path, kind: str) -> str:
    """A file with a secret in it."""
    path = folder / f"{kind}.secret"
    path.write_text(f"{CANARIES[kind]}\n", "utf-8")
    return str(path)


def told(text: str) -> list[str]:
    """Secrets that are in a text."""
    return [canary for canary in CANARIES.values() if canary in text]


def debug(stage: Stage, variables: Mapping[str, str]) -> WorkerProcess:
    return WorkerProcess(stage.folder / "streams.toml", stage.folder, variables, ["--log-level", "debug"])
