"""Prometheus and `promtool`: those of this machine, or from the Debian package, unpacked without installing it."""

from __future__ import annotations

import json
import shutil
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK
from streams_app.embedded.server import EmbeddedServer, start_on_a_port
from tests.servers.cache import CACHE, Progress, ServerUnavailableError, run, silent
from tests.servers.debian import unpack

NAME: Final = "Prometheus"
DIRECTORY: Final = CACHE / "prometheus"

_LIMIT_SECONDS: Final = 60
_START_LIMIT_MS: Final = 60_000


class Prometheus(EmbeddedServer):
    """A running Prometheus that scrapes one worker every second; its data is removed when it stops."""

    description = NAME

    def __init__(self, child: Child, port: int, directory: Path) -> None:
        super().__init__(child)
        self._url = f"http://{LOOPBACK}:{port}"
        self._directory = directory

    @staticmethod
    def start(target: str, rules: str | None = None, *, others: Sequence[str] = ()) -> Prometheus:
        """Start it and return when it answers.

        Args:
            target: ``host:port`` with ``/metrics``.
            rules: Text of a file of rules, which are evaluated every second.
            others: Further targets.

        Raises:
            ServerUnavailableError: There is no Prometheus and it cannot be fetched.
            EmbeddedServerError: It did not start; the message shows its log.
        """
        program = fetch()
        home = Path(tempfile.mkdtemp(prefix="streams-app-prometheus-"))
        scraped = {"job_name": "worker", "static_configs": [{"targets": [target, *others]}]}
        every: dict[str, Any] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        settings: dict[str, Any] = {"global": every, "scrape_configs": [scraped]}
        if rules is not None:
            (home / "rules.yml").write_text(rules, "utf-8")
            settings["rule_files"] = ["rules.yml"]
        (home / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML

        def start_once(chosen: int) -> Prometheus:
            options = [f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data"]
            child = Child("prometheus", [str(program), *options, f"--web.listen-address={LOOPBACK}:{chosen}"], home)
            child.wait_until_ready(lambda: _is_ready(chosen), _START_LIMIT_MS)
            return Prometheus(child, chosen, home)

        return start_on_a_port(None, start_once, taken="address already in use")

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        return self._alerts("firing")

    def pending(self) -> set[str]:
        """Return the names of the alerts whose expression is true, but not for long enough yet."""
        return self._alerts("pending")

    def _alerts(self, state: str) -> set[str]:
        with urllib.request.urlopen(f"{self._url}/api/v1/alerts", timeout=_LIMIT_SECONDS) as answer:
            given: dict[str, Any] = json.load(answer)
        return {one["labels"]["alertname"] for one in given["data"]["alerts"] if one["state"] == state}

    def values(self, expression: str) -> list[float]:
        """Return the current value of each series of a PromQL expression.

        Raises:
            urllib.error.HTTPError: Prometheus rejects the expression.
        """
        asked = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{asked}", timeout=_LIMIT_SECONDS) as answer:
            response: dict[str, Any] = json.load(answer)
        return [float(series["value"][1]) for series in response["data"]["result"]]

    def stop(self) -> None:
        """End it and remove its directory."""
        super().stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def promtool(*words: str, cwd: Path | None = None) -> str:
    """Run ``promtool``; return its output.

    Raises:
        ServerUnavailableError: There is none.
        AssertionError: It reports a fault; the message has its output.
    """
    program = str(fetch().with_name("promtool"))
    try:
        return run([program, *words], _LIMIT_SECONDS, cwd=cwd)
    except ServerUnavailableError as error:  # must fail the test, not skip it
        raise AssertionError(str(error)) from error


def is_fetched() -> bool:
    """Whether the server is already fetched."""
    return _on_path() is not None or DIRECTORY.is_dir()


def fetch(progress: Progress = silent) -> Path:
    """Return the path of a ``prometheus`` with ``promtool`` beside it; fetch it if there is none.

    Raises:
        ServerUnavailableError: There is none and the package is not available.
    """
    if (on_path := _on_path()) is not None:
        return on_path
    if not DIRECTORY.is_dir():
        unpack(NAME, DIRECTORY, ["prometheus"], progress)
    return DIRECTORY / "usr" / "bin" / "prometheus"


def _on_path() -> Path | None:
    found = shutil.which("prometheus")
    return Path(found) if found and Path(found).with_name("promtool").exists() else None


def _is_ready(port: int) -> bool:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/-/ready", timeout=5) as answer:
        return bool(answer.status == 200)
