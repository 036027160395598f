"""A client for the HTTP tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp

from streams_app.health.http import HttpServer

FOLD: dict[str, Any] = {"name": "f", "source": "events", "group_key": "id", "changed": "fields", "quiet_period": "1s"}
PAGES = ["/", "/metrics", "/health/live", "/health/ready", "/groups", "/events", "/asyncapi.json"]

Start = Callable[..., HttpServer]
"""A function that starts a server with settings that differ from the defaults."""


async def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """Request a page; return its status, and its JSON or text."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session,
        session.get(url, headers=headers) as reply,
    ):
        is_json = reply.content_type == "application/json"
        return reply.status, await reply.json() if is_json else await reply.text()
