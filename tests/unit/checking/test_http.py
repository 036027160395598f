"""Findings of `check` about the HTTP pages of a worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams_app.checking.finding import Level
from streams_app.checking.http import http_finding
from streams_app.settings import HttpSettings


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "worker.example", ""])
def test_pages_reachable_from_the_network_need_a_token(host: str, tmp_path: Path) -> None:
    open_to_all = http_finding(HttpSettings(host=host))

    assert Level.WARNING is open_to_all.level
    assert "http.token_file" in open_to_all.advice
    assert Level.OK is http_finding(HttpSettings(host=host, token_file=tmp_path / "token")).level


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.5", "::1", "localhost"])
def test_pages_on_loopback_need_no_token(host: str) -> None:
    assert Level.OK is http_finding(HttpSettings(host=host)).level
