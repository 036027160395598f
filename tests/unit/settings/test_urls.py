"""URLs that may name several servers. ``urllib.parse`` rejects some of them, depending on the patch release of Python."""

from __future__ import annotations

import pytest

from streams_app.settings import LiveServer, RedisSettings, SchemaRegistrySettings, UrlParts


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", UrlParts("redis", None, None, (("h", None),), "")),
        ("REDIS://:p@h:1/0", UrlParts("redis", None, "p", (("h", 1),), "/0")),
        ("x+y://u:a%40[b]@@h:1,[::1]:2,i/s/3", UrlParts("x+y", "u", "a@[b]@", (("h", 1), ("::1", 2), ("i", None)), "/s/3")),
        ("x://[fe80::1%25eth0]:1,[::1]", UrlParts("x", None, None, (("fe80::1%25eth0", 1), ("::1", None)), "")),
        ("x://u:[@a,:2?b=[c#d", UrlParts("x", "u", "[", (("a", None), ("", 2)), "", "b=[c", "d")),
        ("unix:///a/b@c.sock?db=1", UrlParts("unix", None, None, (("", None),), "/a/b@c.sock", "db=1")),
    ],
)
def test_url_is_split_into_user_servers_and_path(url: str, expected: UrlParts) -> None:
    assert expected == UrlParts.of(url)


@pytest.mark.parametrize(
    "url",
    [
        "", "h:1", "//h", "x://[", "x://h]", "x://[h]", "x://[::1", "x://[::1]x", "x://a[::1]", "x://[1.2.3.4]", "x://[1::2::3]",
        "x://h:0", "x://h:65536", "x://h:1:2", "x://h:٣", "x://h:-1", "x://h:99999999999999999999", "x://a b",
        "x://v1.a]:1,h",
    ],
)  # fmt: skip
def test_url_with_an_invalid_server_is_rejected_without_its_text(url: str) -> None:
    with pytest.raises(ValueError, match=r"SCHEME://HOST:PORT|HOST:PORT or|between 1 and 65535") as raised:
        UrlParts.of(url)

    assert not url or url not in str(raised.value)


@pytest.mark.parametrize("password", ["[", "]", "a[b]c", "[::1]", "@[x"])
def test_password_with_brackets_is_not_taken_for_an_address(password: str) -> None:
    one = RedisSettings(url=f"redis://u:{password}@[::1]:1/2")
    several = RedisSettings(url=f"rediss+sentinel://u:{password}@h,[::1]:1,[::2]/s")

    assert (password, password) == (one.parts.password, several.parts.password)
    assert ((("::1", 1),), 2) == (one.nodes, one.database)
    assert (("h", 26379), ("::1", 1), ("::2", 26379)) == several.nodes


@pytest.mark.parametrize(
    "url", ["redis+cluster://h,[::1", "redis://[x]/0", "redis://h:٣/0", "redis://h/٣", "redis+sentinel://h,[]/s"]
)
def test_redis_url_with_an_invalid_server_names_the_form(url: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        RedisSettings(url=url)


@pytest.mark.parametrize("url", ["http://[", "http://[x]:1", "https://a,[::1]:2", "http://h:0", "http://", "ftp://h"])
def test_registry_url_with_an_invalid_server_names_the_form(url: str) -> None:
    with pytest.raises(ValueError, match="is not http://HOST:PORT or https://HOST:PORT"):
        SchemaRegistrySettings(url=url)


@pytest.mark.parametrize("origin", ["http://[", "http://[x]", "https://a,b", "https://h:0", "https://:1"])
def test_invalid_origin_is_rejected(origin: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        LiveServer(origins=(origin,))


def test_origin_may_be_an_ipv6_address() -> None:
    assert LiveServer(origins=("http://[::1]:3000",)).origins == ("http://[::1]:3000",)
