"""Access to the hub: tokens, origins, and rejected requests."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import pytest
import redis.asyncio

from streams_app.live.hub.tokens import COOKIE
from tests.conftest import Names
from tests.helpers.live.hubs import LIMIT_SECONDS, SECRET, Owner, now_ms, secret_file
from tests.helpers.waiting import wait_until
from tests.integration.health.odd_requests import ODD, answer_to, errors_of
from tests.integration.live.hub.views import NEWS, PRIVATE, TAB_A, VISITORS, WHO, Start, cookie, token


async def test_people_are_listed_once_each_by_their_tokens(start: Start, tmp_path: Path) -> None:
    async with start(WHO, secret_file=secret_file(tmp_path)) as hub:
        ada = await hub.events(f"/live/7/events?view=who&tab={TAB_A}", headers=token("7", sub="Ada Lovelace"))
        await hub.events("/live/7/events?view=who", headers=token("*", sub="Ada Lovelace"))
        await hub.events("/live/7/events?view=who", headers=token("*", sub="Bob"))
        state = await ada.until("who", count=3)

    assert ["Ada Lovelace", "Bob"] == state["people"]


async def test_expired_token_ends_the_stream_with_bye(
    start: Start, redis_client: redis.asyncio.Redis, names: Names, tmp_path: Path
) -> None:
    owner = Owner(redis_client, names.app_id, PRIVATE)
    await owner.claim()
    async with start(PRIVATE, secret_file=secret_file(tmp_path)) as hub:
        page = await hub.events("/live/7/events?view=private", headers=token("7", after_ms=2_000))
        await page.until("private", count=0)
        await wait_until(lambda: page.is_over, LIMIT_SECONDS, "the stream ends")
        rejection = await hub.rejection("/live/7/events?view=private", headers=token("7", after_ms=-1_000))

    assert "bye" == page.names()[-1]
    assert (401, "the token has expired") == rejection


async def test_secrets_rotate_while_the_hub_runs_and_a_withdrawn_one_ends_its_streams(start: Start, tmp_path: Path) -> None:
    new = "n" * 32
    async with start(WHO, secret_file=secret_file(tmp_path)) as hub:
        page = await hub.events("/live/7/events?view=who", headers=token("7"))
        await page.until("who", count=1)
        secret_file(tmp_path, new, SECRET)
        both = [await hub.json("/live/7?view=who", headers=token("7", secret=secret)) for secret in (new, SECRET)]
        assert not page.is_over
        secret_file(tmp_path, new)
        await wait_until(lambda: page.is_over, LIMIT_SECONDS, "the stream of the withdrawn secret ends")

    assert [1, 1] == [found["views"][0]["count"] for found in both]


def forged(claims: dict[str, Any], algorithm: str = "HS256", secret: str = SECRET) -> str:
    return jwt.encode(claims, {"none": "", "HS512": 2 * secret}.get(algorithm, secret), algorithm)


def soon() -> int:
    return now_ms() // 1000 + 3600


NESTED = f"{base64.urlsafe_b64encode(b'[' * 5_000).decode()}.e30.e30"
"""A token whose header is nested deeper than the stack of Python."""


@pytest.mark.parametrize(
    ("path", "headers", "status", "message"),
    [
        ("/live/7?view=nwes", {}, 404, "did you mean"),
        ("/live/7", {}, 400, "name 1 to 8 views"),
        ("/live/7?" + "&".join(f"view=v{place}" for place in range(9)), {}, 400, "name 1 to 8 views"),
        ("/live/7/events?view=news&tab=a%20b", {}, 400, "tab must be"),
        (f"/live/{'x' * 513}?view=news", {}, 400, "512 bytes"),
        ("/live/7?view=news", {"Origin": "https://evil.example"}, 403, "origins"),
        ("/live/7?view=news", {"Origin": "https://["}, 403, "origins"),
        ("/live/7?view=news&view=private", {}, 401, "a token is needed"),
        ("/live/7/events?view=private", {}, 401, "a token is needed"),
        ("/live/7?view=private", cookie("x.y.z"), 401, "cannot be read"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": 2**31}, "none")), 401, "signed with HS256"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": 2**31}, "HS512")), 401, "signed with HS256"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": 2**31}, secret="t" * 32)), 401, "not signed"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": 2**31})), 401, "more than 24 h"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"]})), 401, "no exp"),
        ("/live/7?view=private", cookie(forged({"exp": 2**31})), 401, "no pages"),
        ("/live/7?view=private", cookie(forged({"pages": "*", "exp": 2**31})), 401, "list of names"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": "soon"})), 401, "time in seconds"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": soon(), "sub": "\ud800"})), 401, "sub of the token"),
        ("/live/7?view=private", cookie(forged({"pages": ["*", "\udfff"], "exp": soon()})), 401, "pages of the token"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": soon(), "sub": 7})), 401, "sub of the token"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": soon(), "nbf": soon()})), 401, "its nbf is in the future"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": soon(), "nbf": "now"})), 401, "nbf of the token must be"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": soon(), "nbf": True})), 401, "nbf of the token must be"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": soon(), "aud": "shop"})), 401, "the claim aud"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": soon(), "aud": []})), 401, "the claim aud"),
        ("/live/7?view=private", cookie(NESTED), 401, "cannot be read"),
        ("/nothing", {}, 404, "Not Found"),
    ],
)  # fmt: skip
async def test_invalid_request_is_rejected_with_an_instruction(
    start: Start, tmp_path: Path, path: str, headers: dict[str, str], status: int, message: str
) -> None:
    async with start(NEWS, PRIVATE, secret_file=secret_file(tmp_path)) as hub:
        found, text = await hub.rejection(path, headers=headers)

    assert status == found, text
    assert message in text


async def test_odd_request_gets_json_and_no_line_in_the_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    async with start(VISITORS) as hub:
        port = urlsplit(hub.url).port
        for odd in ODD:
            status, answer = await answer_to(port, odd.sent.replace(b"/metrics", b"/live.js"))
            assert odd.status == status, (odd, answer)
            assert status == 200 or odd.error in answer["error"], odd

    assert [] == errors_of(caplog)


@pytest.mark.parametrize("origin", ["null", "http://[", "http://[::1", "http://a:b:c", "b\xff", "//", "x", "http://y@x"], ids=ascii)
async def test_odd_origin_is_rejected(start: Start, caplog: pytest.LogCaptureFixture, origin: str) -> None:
    async with start(VISITORS) as hub:
        sent = b"GET /live/7?view=visitors HTTP/1.1\r\nHost: x\r\nOrigin: %s\r\n\r\n" % origin.encode("latin-1")
        status, answer = await answer_to(urlsplit(hub.url).port, sent)

    assert 403 == status
    assert "are not allowed" in answer["error"]
    assert [] == errors_of(caplog)


@pytest.mark.parametrize("name", [b"\xff", b"%FF", b"%ED%A0%80", b"\xed\xa0\x80"])
async def test_page_name_that_is_no_text_does_not_affect_other_pages(start: Start, name: bytes) -> None:
    async with start(VISITORS) as hub:
        page = await hub.events("/live/7/events?view=visitors")
        await page.until("visitors", state="ok", count=1)
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(hub.url).port)
        writer.write(b"GET /live/%s?view=visitors HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % name)
        answer = await reader.read()
        writer.close()
        other = await hub.events("/live/7/events?view=visitors")
        await page.until("visitors", state="ok", count=2)
        await other.until("visitors", state="ok", count=2)

    assert answer.split()[1] in (b"200", b"400")


async def test_token_is_valid_from_its_nbf_on(start: Start, tmp_path: Path) -> None:
    claims = {"pages": ["7"], "exp": soon(), "nbf": now_ms() / 1000, "iat": soon(), "iss": "shop", "jti": 7}
    async with start(PRIVATE, secret_file=secret_file(tmp_path)) as hub:
        found = await hub.json("/live/7?view=private", headers=cookie(forged(claims)))

    assert "private" == found["views"][0]["view"]


async def test_binary_token_is_rejected(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with start(PRIVATE, secret_file=secret_file(tmp_path)) as hub:
        sent = b"GET /live/7?view=private HTTP/1.1\r\nHost: x\r\nCookie: %s=\xff.\xfe.\xed\xa0\x80\r\n\r\n" % COOKIE.encode()
        status, answer = await answer_to(urlsplit(hub.url).port, sent)

    assert (401, "the token cannot be read") == (status, answer["error"])
    assert [] == errors_of(caplog)


async def test_token_opens_only_its_own_pages(start: Start, tmp_path: Path) -> None:
    async with start(PRIVATE, secret_file=secret_file(tmp_path)) as hub:
        allowed = token("7", "team-*")
        other = await hub.rejection("/live/70?view=private", headers=allowed)
        found = [await hub.json(f"/live/{page}?view=private", headers=allowed) for page in ("7", "team-a")]

    assert (403, "the token is not for this page") == other
    assert 2 == len(found)


async def test_only_configured_hosts_are_served(start: Start) -> None:
    async with start(VISITORS, hosts=("live.example.com",)) as hub:
        found = {}
        for path in ("/live/7?view=visitors", "/live/7/events?view=visitors", "/live.js", "/", "/nothing"):
            for authority in ("live.example.com:8090", "rebound.example", "127.0.0.1"):
                async with hub.session.get(hub.url + path, headers={"Host": authority}) as response:
                    found[path, authority] = response.status
        rejection = await hub.rejection("/live/7?view=visitors", headers={"Host": "rebound.example"})

    assert {403} == {status for (_, authority), status in found.items() if authority != "live.example.com:8090"}
    assert [200, 200, 200, 404, 404] == [status for (_, authority), status in found.items() if authority == "live.example.com:8090"]
    assert (403, "the host rebound.example is not allowed: live_server.hosts does not contain it") == rejection


async def test_configured_and_own_origins_are_accepted(start: Start) -> None:
    async with start(NEWS, origins=("https://www.example.com",)) as hub:
        for origin in ("https://www.example.com", hub.url):
            async with hub.session.get(hub.url + "/live/7?view=news", headers={"Origin": origin}) as response:
                assert (200, origin) == (response.status, response.headers["Access-Control-Allow-Origin"])
                assert "true" == response.headers["Access-Control-Allow-Credentials"]
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        rejection = await hub.rejection("/live/7?view=news", headers={"Origin": "http://www.example.com"})

    assert 403 == rejection[0]
