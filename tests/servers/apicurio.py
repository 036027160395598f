"""Apicurio Registry, which has the REST interface of Confluent's registry; fetched from Maven, with its schemas in memory."""

from __future__ import annotations

import http.client
import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK
from streams_app.embedded.server import EmbeddedServer, start_on_a_port
from tests.servers.cache import CACHE, Progress, filling, run, silent
from tests.servers.java import program

VERSION: Final = "2.6.13.Final"
NAME: Final = f"Apicurio Registry {VERSION}"
HOME: Final = CACHE / f"apicurio-{VERSION}"
PATH: Final = "/apis/ccompat/v7"

START_LIMIT_MS: Final = 120_000
TAKEN: Final = "already in use"

_FETCH_LIMIT_SECONDS = 900
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"


class Apicurio(EmbeddedServer):
    """A running registry, whose schemas are lost when it stops."""

    def __init__(self, child: Child, port: int, directory: Path) -> None:
        super().__init__(child)
        self.port = port
        self.url = f"http://{LOOPBACK}:{port}{PATH}"
        self.description = NAME
        self._directory = directory

    @staticmethod
    def start() -> Apicurio:
        """Start it on a free port, and return when it answers.

        Raises:
            ServerUnavailableError: No Java or Maven, or the distribution cannot be fetched.
            EmbeddedServerError: It did not start; the message shows its log.
        """
        jar = fetch() / f"apicurio-registry-app-{VERSION}-runner.jar"
        home = Path(tempfile.mkdtemp(prefix="streams-app-apicurio-"))

        def start_once(chosen: int) -> Apicurio:
            options = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
            listens = [f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={chosen}"]
            child = Child("apicurio", [program("java", NAME), *options, *listens, "-jar", str(jar)], home)
            child.wait_until_ready(lambda: _is_ready(chosen), START_LIMIT_MS)
            return Apicurio(child, chosen, home)

        return start_on_a_port(None, start_once, taken=TAKEN)

    def register(self, subject: str, schema: str, **more: Any) -> int:
        """Register a schema under a subject; return its id."""
        answer: dict[str, Any] = _asked(
            self.port, "POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema, **more}
        )
        assert "id" in answer, answer
        return int(answer["id"])

    def stop(self) -> None:
        """End it and remove its directory."""
        super().stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def fetch(progress: Progress = silent) -> Path:
    """Return the directory of the distribution; fetch it if it is missing.

    Raises:
        ServerUnavailableError: Java or Maven is missing, or Maven failed.
    """
    program("java", NAME)
    if HOME.is_dir():
        return HOME
    maven = program("mvn", NAME)
    progress(f"{NAME}: fetching it with Maven (142 MB) ...")
    with filling(HOME) as part:
        goal = ["dependency:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={part}"]
        run([maven, "-q", "-B", *goal], _FETCH_LIMIT_SECONDS)
        (archive,) = part.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(part, filter="data")
        archive.unlink()
    return HOME


def is_fetched() -> bool:
    """Whether the server is already fetched."""
    return HOME.is_dir()


def _is_ready(port: int) -> bool:
    return isinstance(_asked(port, "GET", "/subjects"), list)


def _asked(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=30)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, PATH + path, data, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
        return json.loads(connection.getresponse().read() or b"null")
    except (http.client.HTTPException, json.JSONDecodeError) as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()
