"""``[console]``: addresses, and who may reach it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from streams_app.settings import ConsoleSettings


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"listen": "8091"}, "is not HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, "is not HOST:PORT"),
        ({"listen": "http://localhost:1"}, "is not HOST:PORT"),
        ({"listen": "0.0.0.0:8091"}, "name a file with a token as console.token_file"),
        ({"listen": "[::]:8091"}, "name a file with a token"),
        ({"listen": "console.example.com:80"}, "name a file with a token"),
        ({"workers": ["a b"]}, "is not the address of a worker"),
        ({"workers": ["http://w:8080/metrics"]}, "is not the address of a worker"),
        ({"hubs": ["http://h:8080/x"]}, "is not the address of a live view server"),
        ({"public_url": "console.example.com"}, "is not a URL without a path"),
        ({"public_url": "https://a/b"}, "is not a URL without a path"),
        ({"public_url": "javascript://a"}, "is not a URL without a path"),
    ],
)
def test_fault_says_what_to_write(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        ConsoleSettings(**given)


@pytest.mark.parametrize(
    ("listen", "name", "port"),
    [
        ("127.0.0.1:8091", "127.0.0.1", 8091),
        ("[::1]:0", "::1", 0),
        ("localhost:1", "localhost", 1),
        ("127.8.8.8:1", "127.8.8.8", 1),
    ],
)
def test_loopback_needs_no_token(listen: str, name: str, port: int) -> None:
    console = ConsoleSettings(listen=listen)

    assert (name, port, True) == (console.host, console.port, console.is_on_loopback)


def test_without_a_token_only_names_of_the_console_are_answered() -> None:
    console = ConsoleSettings(public_url="https://console.example.com/")

    assert {"localhost", "127.0.0.1", "[::1]", "console.example.com"} == set(console.hosts)
    assert ("https://console.example.com", True) == (console.public_url, console.is_secure)


def test_with_a_token_every_name_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    console = ConsoleSettings(listen="0.0.0.0:8091", token_file=path)

    assert ((), "secret") == (console.hosts, console.token)


@pytest.mark.parametrize("name", ["X User", "X:User", "é", "X\nUser", "x" * 101])
def test_user_header_that_is_no_name_is_a_fault(name: str) -> None:
    with pytest.raises(ValidationError, match="is not the name of a header"):
        ConsoleSettings(user_header=name)


def test_actions_are_off_unless_they_are_allowed() -> None:
    assert (False, True) == (ConsoleSettings().allow_actions, ConsoleSettings(allow_actions=True).allow_actions)
