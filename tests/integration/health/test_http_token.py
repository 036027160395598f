"""Access to the pages: with a token configured, only health pages are open without it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streams_app.errors import ConfigurationError
from streams_app.health.http import ASYNCAPI_PAGE, EVENTS_PAGE, HttpServer
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.settings import HttpSettings
from tests.helpers.manual_clock import ManualClock
from tests.integration.health.asking import PAGES, Start, get


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer wrong", "Bearer open-sesame2", "open-sesame", "Basic open-sesame"]
)
async def test_health_is_public_and_other_pages_need_the_token(start: Start, token_file: Path, authorization: str | None) -> None:
    url = start(token_file=token_file).url
    headers = {} if authorization is None else {"Authorization": authorization}
    codes = {page: (await get(f"{url}{page}", headers))[0] for page in PAGES}

    assert codes == {page: 200 if page.startswith("/health/") else 401 for page in PAGES}


async def test_token_opens_every_page(start: Start, status: Status, token_file: Path) -> None:
    async def provider(*_: Any) -> list[dict[str, Any]]:
        return []

    status.groups_provider = provider
    status.pages |= {EVENTS_PAGE: dict, ASYNCAPI_PAGE: dict}
    url = start(token_file=token_file).url
    codes = [(await get(f"{url}{page}", {"Authorization": "Bearer open-sesame"}))[0] for page in PAGES]

    assert {200} == set(codes)


async def test_unknown_page_is_protected_by_the_token_too(start: Start, token_file: Path) -> None:
    code, body = await get(f"{start(token_file=token_file).url}/nothing")

    assert code == 401
    assert "open-sesame" not in str(body)


async def test_wrong_token_of_any_bytes_is_rejected(start: Start, token_file: Path) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", start(token_file=token_file).port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 401 ")


async def test_empty_token_file_opens_nothing(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("\n", "utf-8")
    try:
        server = start(token_file=path)
    except ConfigurationError:
        return  # rejected at the start: as good

    assert (await get(f"{server.url}/metrics"))[0] == 401


def test_missing_token_file_is_a_configuration_error(tmp_path: Path, status: Status, metrics: Metrics) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.token_file"):
        HttpServer(HttpSettings(token_file=tmp_path / "nothing"), status, metrics, ManualClock())
