"""The metrics of running workers, over HTTP: for commands that ask them rather than Kafka or Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from streams_app.settings import HttpSettings

ANSWER_SECONDS: Final = 3.0
UNAUTHORIZED: Final = 401
ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Addresses to listen on → to connect to."""


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


async def pages(http: HttpSettings, urls: Sequence[str]) -> list[Page]:
    """Asks workers for their metrics, all at once; none of them makes it fail.

    Args:
        http: Whose token is sent.
        urls: Of the workers.
    """
    headers = {"Authorization": f"Bearer {http.token}"} if http.token else {}
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        return await asyncio.gather(*(_page(session, url) for url in urls))


async def _page(session: aiohttp.ClientSession, url: str) -> Page:
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
    return Page(url, text) if "streams_app_build_info" in text else Page(url, None, "is not a worker of streams_app")
