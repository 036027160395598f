"""The consumers of examples/consumers, compiled and run: each drops what was sent twice and what is older."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.checkout.pages import ROOT
from tests.conftest import KafkaServer, Names
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

LIMIT_SECONDS = 60
RECORDS = [
    ("ann", "f:s:0:1-2", 20), ("ann", "f:s:0:1-2", 20), ("ann", "f:s:0:0-0", 10), ("ben", "f:s:0:3-3", 5), ("ann", "f:s:0:4-9", 90),
]  # fmt: skip
"""Key, fold id and version: one record is sent twice, one is older than the record before it."""

PROGRAMS = {
    "go": (("go", "mod", "download"), ("go", "build", "-o", "consumer", "."), ("./consumer",)),
    "java": (
        ("mvn", "-q", "-B", "dependency:copy-dependencies"),
        ("mvn", "-q", "-B", "compile"),
        ("java", "-cp", "target/classes:target/dependency/*", "Consumer"),
    ),
    "typescript": (
        ("npm", "install", "--no-audit", "--no-fund", "--no-package-lock"),
        ("npm", "run", "build"),
        ("node", "consumer.js"),
    ),
}
"""Language → commands that download the client, compile the program and run it."""


def built(language: str, folder: Path) -> Path:
    """Compile the program in a copy of its folder. Without its tools or its client, the test is skipped."""
    download, compilation, _ = PROGRAMS[language]
    if shutil.which(download[0]) is None:
        pytest.skip(f"{download[0]} is not installed")
    copied = shutil.copytree(ROOT / "examples" / "consumers" / language, folder / language)
    if (got := subprocess.run(download, cwd=copied, capture_output=True, text=True, check=False, timeout=300)).returncode:
        pytest.skip(f"the client cannot be downloaded: {(got.stdout + got.stderr)[-300:]}")
    done = subprocess.run(compilation, cwd=copied, capture_output=True, text=True, check=False, timeout=300)
    assert 0 == done.returncode, done.stdout + done.stderr
    return copied


@contextmanager
def running(language: str, folder: Path, *arguments: str) -> Iterator[Path]:
    """Run the program; yield the file of its output."""
    output = folder / "output"
    with output.open("wb") as file, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen([*PROGRAMS[language][2], *arguments], cwd=folder, stdout=file, stderr=errors)
    try:
        yield output
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("language", PROGRAMS)
async def test_consumer_drops_records_that_were_sent_twice_or_are_older(
    language: str, kafka: KafkaServer, names: Names, tmp_path: Path
) -> None:
    folder = built(language, tmp_path)
    topic = names.topic("folded")
    await create_topics(kafka.bootstrap_servers, [topic], partitions=1)
    for key, fold_id, version in RECORDS:
        value = json.dumps({"account_id": key, "fold": {"id": fold_id, "version": version}}).encode()
        await produce(kafka.bootstrap_servers, topic, [(key.encode(), value)], headers=[("fold-id", fold_id.encode())])
    expected = ["process ann f:s:0:1-2", "process ben f:s:0:3-3", "process ann f:s:0:4-9"]
    with running(language, folder, kafka.bootstrap_servers, topic, names.app_id) as output:
        await wait_until(lambda: output.read_text("utf-8").count("\n") >= len(expected), LIMIT_SECONDS, f"{language} has read all")

        assert expected == output.read_text("utf-8").splitlines()
