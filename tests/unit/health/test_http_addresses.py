"""The host of a request, and the client that sent it."""

from __future__ import annotations

import pytest

from streams_app.health.http_addresses import client_of, is_allowed_authority
from streams_app.settings import LiveServer

HOSTS = ("live.example.com", "127.0.0.1", "[::1]")
PROXIES = LiveServer().proxy_networks


@pytest.mark.parametrize(
    "authority", ["live.example.com", "LIVE.example.com:8090", "127.0.0.1:80", "[::1]", "[::1]:8090", "127.0.0.1:"]
)
def test_host_of_the_list_is_allowed_with_any_port(authority: str) -> None:
    assert is_allowed_authority(authority, HOSTS)


@pytest.mark.parametrize(
    "authority",
    [
        None, "", "evil.example", "live.example.com.evil.example", "evil.example:80@live.example.com", "live.example.com/", "::1",
        "x live.example.com", "live.example.com:80:80", "[::1", "live.example.com.", "live.example.com\n", "127.0.0.1:x",
        "[live.example.com]",
    ],
)  # fmt: skip
def test_other_host_is_not_allowed(authority: str | None) -> None:
    assert not is_allowed_authority(authority, HOSTS)


def test_any_host_is_allowed_without_a_list() -> None:
    assert is_allowed_authority(None, ())
    assert is_allowed_authority("evil.example", ())


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.7", [], "203.0.113.7"),
        ("203.0.113.7", ["198.51.100.1"], "203.0.113.7"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66", "198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["192.168.1.5, 10.0.0.2"], "192.168.1.5"),
        ("10.0.0.1", ["192.0.2.66, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8:1:2::5]:4711"], "2001:db8:1:2::/64"),
        ("2001:db8:1:2:3:4:5:6", [], "2001:db8:1:2::/64"),
        ("fe80::1%eth0", [], "fe80::/64"),
        ("::ffff:203.0.113.7", [], "203.0.113.7"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", [", ".join(["x"] * 9_000 + ["198.51.100.1"])], "198.51.100.1"),
        (None, ["198.51.100.1"], ""),
        ("", [], ""),
    ],
)  # fmt: skip
def test_client_is_the_last_address_that_no_proxy_has(peer: str | None, forwarded: list[str], client: str) -> None:
    assert client == client_of(peer, forwarded, PROXIES)


def test_forwarded_address_is_ignored_without_proxies() -> None:
    assert "127.0.0.1" == client_of("127.0.0.1", ["198.51.100.1"], ())
