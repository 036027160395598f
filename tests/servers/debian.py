"""Servers from Debian packages, unpacked without installing them: this starts no service and needs no root."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.servers.cache import Progress, ServerUnavailableError, filling, run

_LIMIT_SECONDS = 300


def unpack(name: str, directory: Path, packages: Sequence[str], progress: Progress) -> None:
    """Fill a directory with the contents of packages of this system.

    Args:
        name: Of the server, for people.
        directory: Is made; it has the tree of the packages, ``usr/bin`` and so on.
        packages: Their names.
        progress: Told before anything is fetched.

    Raises:
        ServerUnavailableError: There is no apt, or it does not have them.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise ServerUnavailableError(f"{name} is not on the PATH, and there is no apt to fetch it with")
    progress(f"{name}: fetching the Debian packages ...")
    with filling(directory) as part:
        download = ["apt-get", "download", *packages]
        try:
            run(download, _LIMIT_SECONDS, cwd=part)
        except ServerUnavailableError:
            # A new container has no package lists, an old one has lists of removed files.
            run(["apt-get", "update"], _LIMIT_SECONDS)
            run(download, _LIMIT_SECONDS, cwd=part)
        for package in sorted(part.glob("*.deb")):
            run(["dpkg-deb", "-x", str(package), str(part)], _LIMIT_SECONDS)
            package.unlink()
