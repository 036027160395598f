"""Views for the tests of the hub, and the tokens of their visitors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from streams_app.live.hub.tokens import COOKIE, signed
from streams_app.settings import LiveView
from tests.helpers.live.hubs import SECRET, RunningHub, now_ms

NEWS = LiveView(name="news", kind="list", source="t", page="p", expiry="1m", show=3, public=True)
SUPPORTERS = LiveView(name="supporters", kind="count", source="t", page="p", expiry="1m", public=True)
VISITORS = LiveView(name="visitors", kind="presence", expiry="60s", public=True)
PRIVATE = LiveView(name="private", kind="count", source="t", page="p", expiry="1m")
WHO = LiveView(name="who", kind="presence", expiry="60s", people=True)
TAB_A, TAB_B = "tab-aaaaaa", "tab-bbbbbb"

Start = Callable[..., AbstractAsyncContextManager[RunningHub]]


def cookie(text: str) -> dict[str, str]:
    return {"Cookie": f"{COOKIE}={text}"}


def token(*pages: str, sub: str = "", after_ms: int = 60_000, secret: str = SECRET) -> dict[str, str]:
    return cookie(signed(secret, pages, sub, now_ms() + after_ms))
