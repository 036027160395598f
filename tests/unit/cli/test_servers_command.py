"""``streams-app servers``: what it answers before it starts a server."""

from __future__ import annotations

import socket

import pytest

from streams_app.cli import run


def test_servers_command_names_the_option_for_a_port_that_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = run(["servers", "--kafka-port", "0", "--redis-port", str(port)])

    assert 75 == code
    assert f"port {port} is in use" in capsys.readouterr().err
