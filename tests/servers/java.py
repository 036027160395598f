"""Servers whose jars come from Maven."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.servers.cache import ServerUnavailableError, run

_FETCH_LIMIT_SECONDS = 900

_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>streams-app</groupId><artifactId>for-tests</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def program(name: str, server: str) -> str:
    """Return the path of a program that a server needs.

    Raises:
        ServerUnavailableError: It is not installed.
    """
    path = shutil.which(name)
    if path is None:
        raise ServerUnavailableError(f"{server} needs `{name}`, which is not installed")
    return path


def fetch_jars(maven: str, part: Path, artifacts: list[tuple[str, str, str]]) -> Path:
    """Copy artifacts and all their dependencies into the folder ``libs`` of ``part``; return that folder.

    Args:
        maven: Maven's program.
        part: An empty folder.
        artifacts: Group, name and version of each. Never use a range of versions: Maven would read every release.

    Raises:
        ServerUnavailableError: Maven failed.
    """
    pom, libs = part / "pom.xml", part / "libs"
    pom.write_text(_POM.format(dependencies="".join(_DEPENDENCY.format(*artifact) for artifact in artifacts)), "utf-8")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={libs}"]
    run([maven, "-q", "-B", "-f", str(pom), *goal], _FETCH_LIMIT_SECONDS)
    return libs
