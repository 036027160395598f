"""Web servers as processes of their own, as their users start them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from streams_app.embedded.child import Child
from streams_app.embedded.ports import free_port
from tests.helpers.worker.workers import get_page
from tests.servers.cache import ROOT

LIMIT_MS = 60_000


@contextmanager
def web_server(command: Sequence[str], folder: Path, environment: Mapping[str, str], port: int | None = None) -> Iterator[str]:
    """Run a web server for the block, and end it by SIGTERM.

    Args:
        command: Arguments of ``python``; PORT is replaced by the port of the server.
        folder: Import path of the server; the log is written to a directory in it.
        environment: Added to the variables of this process.
        port: Its port, if another process has to know it; None: any free one.

    Yields:
        Its URL, without a slash at the end.
    """
    port = free_port() if port is None else port
    url = f"http://127.0.0.1:{port}"
    words = [sys.executable, *(word.replace("PORT", str(port)) for word in command)]
    path = os.pathsep.join([str(ROOT), str(folder)])
    home = Path(tempfile.mkdtemp(prefix="web-", dir=folder))
    child = Child("web server", words, home, {**environment, "PYTHONPATH": path})
    child.wait_until_ready(lambda: get_page(url)[0] != 0, LIMIT_MS)
    try:
        yield url
    finally:
        child.stop()
        assert "Traceback" not in child.log_tail(), child.log_tail()
