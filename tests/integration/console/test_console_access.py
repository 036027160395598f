"""Who may see the console over HTTP, and what those see who may not."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from yarl import URL

from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD
from tests.helpers.console.consoles import running_console, token_file, with_console


async def test_headers_forbid_scripts_of_others_frames_and_referrers(settings: Settings) -> None:
    async with running_console(settings) as console:
        answers = [await console.get(path) for path in ("/", "/overview.json", "/nothing", "/openapi.json", "/login")]

    for _, text, headers in answers:
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert ("same-origin", "DENY", "no-store") == (
            headers["Referrer-Policy"], headers["X-Frame-Options"], headers["Cache-Control"]
        )  # fmt: skip
        assert " style=" not in text and "<style" not in text and " onclick" not in text


async def test_other_methods_and_large_bodies_are_rejected(settings: Settings) -> None:
    async with running_console(settings) as console:
        status, _, headers = await console.post("/")
        found = (await console.post("/login", data=b"x" * 100_000))[0]

    assert (405, "GET,HEAD", 303) == (status, headers["Allow"], found)


async def test_request_for_foreign_is_rejected_without_a_token(settings: Settings) -> None:
    async with running_console(settings) as console:
        status, text, _ = await console.get("/overview.json", headers={"Host": "evil.example.com"})

    assert 403 == status
    assert "app_id" not in text


async def test_errors_of_those_who_may_not_see_the_console_name_nothing_of_the_application(
    settings: Settings, tmp_path: Path
) -> None:
    with_token = with_console(settings, token_file=token_file(tmp_path))
    async with running_console(with_token) as console:
        found = [await console.get(path) for path in ("/loginx", "/health/none", "/static/none")]
        found.append(await console.post("/login", data={"token": "wrong"}, headers={"Origin": "https://evil.example.com"}))
        seen = await console.get("/none", headers={"Authorization": "Bearer right"})
        for number in range(11):
            last = await console.get("/", headers={"Authorization": f"Bearer {number}"})
    async with running_console(settings) as console:
        foreign = await console.get("/", headers={"Host": "evil.example.com"})
    found += [last, foreign]

    assert [404, 404, 404, 403, 429, 403] == [status for status, _, _ in found]
    assert [False] * 6 == [FOLD in text for _, text, _ in found]
    assert (404, True) == (seen[0], FOLD in seen[1])


async def test_token_opens_the_console_by_form_cookie_and_header(settings: Settings, tmp_path: Path) -> None:
    async with running_console(with_console(settings, token_file=token_file(tmp_path))) as console:
        asked = await console.get("/folds/x?page=2")
        rejected = [
            (await console.get("/overview.json", headers={"Accept": "application/json"}))[0],
            (await console.post("/login", data={"token": "wrong"}))[0],
            (await console.post("/login", data={"token": "right"}, headers={"Origin": "https://evil.example.com"}))[0],
        ]
        entered = await console.post("/login?next=%2Foverview.json", data={"token": " right "})
        cookie = entered[2]["Set-Cookie"]
        found = [
            (await console.get("/overview.json", headers={"Cookie": cookie.partition(";")[0]}))[0],
            (await console.get("/overview.json", headers={"Authorization": "Bearer right"}))[0],
            (await console.get("/static/app.css"))[0],
        ]

    assert (303, "/folds/x?page=2") == (asked[0], URL(asked[2]["Location"]).query["next"])
    assert [401, 403, 403] == rejected
    assert (303, "/overview.json") == (entered[0], entered[2]["Location"])
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Lax", "Path=/"))
    assert [200, 200, 200] == found


@pytest.mark.parametrize(
    "target", ["//evil.example.com", "https://evil.example.com", "/\\evil.example.com", "javascript:alert(1)", ""]
)
async def test_login_leads_to_no_other_host(settings: Settings, tmp_path: Path, target: str) -> None:
    async with running_console(with_console(settings, token_file=token_file(tmp_path))) as console:
        entered = await console.post(f"/login?next={quote(target, safe='')}", data={"token": "right"})

    assert (303, "/") == (entered[0], entered[2]["Location"])


async def test_token_tried_too_often_is_no_longer_compared(settings: Settings, tmp_path: Path) -> None:
    async with running_console(with_console(settings, token_file=token_file(tmp_path))) as console:
        wrong = [(await console.post("/login", data={"token": str(number)}))[0] for number in range(11)]
        right = [
            (await console.post("/login", data={"token": "right"}))[0],
            (await console.get("/overview.json", headers={"Authorization": "Bearer right"}))[0],
        ]

    assert [403] * 10 + [429] == wrong
    assert [429, 429] == right
