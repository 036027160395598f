"""The metrics of running workers, over HTTP: for commands that ask them rather than Kafka or Redis."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from streams_app.formatting import escaped
from streams_app.settings import HttpSettings, Settings

ANSWER_SECONDS: Final = 3.0
UNAUTHORIZED: Final = 401
ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Addresses to listen on → to connect to."""

_BUILD_INFO: Final = re.compile(r'^streams_app_build_info\{(?:.*?app_id="([^"]*)")?', re.MULTILINE)
"""The application is not told by a worker of an older version."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one worker answered.

    Attributes:
        url: Where it was asked.
        text: Its metrics; None: there are none, see ``fault``.
        fault: Why not, in a few words.
    """

    url: str
    text: str | None
    fault: str = ""


def usual_url(http: HttpSettings) -> str | None:
    """Where a worker with these settings listens on this machine; None: on any free port."""
    host = ANYWHERE.get(http.host, http.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{http.port}" if http.port else None


def metrics_url(url: str) -> str:
    """``host:8080``, ``http://host:8080/`` and ``http://host:8080/metrics`` are one."""
    whole = url if "://" in url else f"http://{url}"
    return whole.rstrip("/").removesuffix("/metrics") + "/metrics"


def page_of(url: str, text: str, app_id: str) -> Page:
    """What an answer is worth: another application may have the port, and subscribers of the same names (pure)."""
    found = _BUILD_INFO.search(text)
    if found is None:
        return Page(url, None, "is not a worker of streams_app")
    if found[1] not in (None, app_id):
        return Page(url, None, f"belongs to the application {escaped(found[1])}, not to {app_id}")
    return Page(url, text)


async def pages(settings: Settings, urls: Sequence[str]) -> list[Page]:
    """Asks workers for their metrics, all at once; none of them makes it fail.

    Args:
        settings: Whose token is sent, and which application is asked for.
        urls: Of the workers.
    """
    http = settings.http
    headers = {"Authorization": f"Bearer {http.token}"} if http.token else {}
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        return await asyncio.gather(*(_page(session, url, settings.app_id) for url in urls))


async def _page(session: aiohttp.ClientSession, url: str, app_id: str) -> Page:
    try:
        async with session.get(metrics_url(url), allow_redirects=False) as answer:
            if answer.status == UNAUTHORIZED:
                return Page(url, None, "wants another token: http.token_file must be the worker's")
            if not answer.ok:
                return Page(url, None, f"answers with status {answer.status}")
            text = await answer.text(errors="replace")
    except TimeoutError:
        return Page(url, None, f"does not answer within {ANSWER_SECONDS:.0f} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Page(url, None, f"does not answer ({type(error).__name__})")
    return page_of(url, text, app_id)
