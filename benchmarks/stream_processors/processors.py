"""The stream processors: what each needs, and the command lines that start it.

Each has the settings with which it was fastest here, and none that protects its state from a crash: no checkpoints, no changelog,
no recovery store, no transactions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.environments import install
from streams_app.embedded.ports import LOOPBACK, free_port
from tests.servers.cache import CACHE, filling, run
from tests.servers.java import fetch_jars, program

FOLDER: Final = CACHE / "stream-processors"
VENV: Final = FOLDER / "bytewax"
HERE: Final = Path(__file__).parent
CONSTRAINTS: Final = HERE / "constraints.txt"
PACKAGES: Final = ("bytewax[kafka]", "orjson")
BYTEWAX_PROCESSES: Final = 2
DEFAULT_LOADS: Final = ("hot", "bursts", "wide")

_COMPILE_LIMIT_SECONDS: Final = 120
_LOGGER: Final = ("org.slf4j", "slf4j-simple", "1.7.36")
_JAVA_OPTIONS: Final = (
    "-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
    # Flink copies the collections of Java by reflection.
    "--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Processor:
    """One program that folds sessions.

    Attributes:
        title: Name for people, with the version.
        main: Class of a Java program; "" for Bytewax.
        artifacts: Its jars, as Maven names them.
        environment: Environment variables of the program.
        closes_all: Whether the sessions of the last events are closed, too, because it stops at the end of the topic.
    """

    title: str
    main: str = ""
    artifacts: Sequence[tuple[str, str, str]] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    closes_all: bool = False

    def prepare(self, classes: Path) -> None:
        """Fetch what it needs, and compile it into this folder.

        Raises:
            ServerUnavailableError: Java, its compiler or Maven is missing, or one of them failed.
        """
        if self.main:
            program("java", self.title)
            compiler = [program("javac", self.title), "-cp", f"{self._jars()}/*", "-d", str(classes)]
            run([*compiler, str(HERE / f"{self.main}.java")], _COMPILE_LIMIT_SECONDS)
        else:
            install(VENV, CONSTRAINTS, PACKAGES)

    def commands(self, classes: Path) -> list[list[str]]:
        """Return the command line of each of its processes."""
        if self.main:
            path = os.pathsep.join([f"{self._jars()}/*", str(classes)])
            return [[program("java", self.title), *_JAVA_OPTIONS, "-cp", path, self.main]]
        addresses = ";".join(f"{LOOPBACK}:{free_port()}" for _ in range(BYTEWAX_PROCESSES))
        command = [str(VENV / "bin" / "python"), "-m", "bytewax.run", "benchmarks.stream_processors.by_bytewax:flow"]
        return [[*command, "-i", str(number), "-a", addresses] for number in range(BYTEWAX_PROCESSES)]

    def _jars(self) -> Path:
        _, name, version = self.artifacts[0]
        home = FOLDER / f"{name}-{version}"
        if not home.is_dir():
            with filling(home) as part:
                fetch_jars(program("mvn", self.title), part, [*self.artifacts, _LOGGER])
        return home / "libs"


_KAFKA_STREAMS: Final = (("org.apache.kafka", "kafka-streams", "4.1.1"),)

PROCESSORS: Final = {
    "flink": Processor(
        "Flink 2.0.1, heap state",
        "FlinkSessions",
        (
            ("org.apache.flink", "flink-streaming-java", "2.0.1"),
            ("org.apache.flink", "flink-clients", "2.0.1"),
            ("org.apache.flink", "flink-connector-base", "2.0.1"),
            ("org.apache.flink", "flink-connector-kafka", "4.0.1-2.0"),
        ),
    ),
    "kafka-streams": Processor("Kafka Streams 4.1.1, RocksDB", "KafkaStreamsSessions", _KAFKA_STREAMS),
    "kafka-streams-memory": Processor(
        "Kafka Streams 4.1.1, in memory", "KafkaStreamsSessions", _KAFKA_STREAMS, {"SESSIONS_STORE": "memory"}
    ),
    "bytewax": Processor("Bytewax 0.21.1, two processes", closes_all=True),
}
