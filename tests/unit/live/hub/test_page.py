"""Files served to browsers are small, and comply with a content security policy."""

from __future__ import annotations

from importlib.resources import files

from streams_app.live.hub.server import _page
from streams_app.settings import LiveView

WEB = files("streams_app.live") / "web"


def test_module_for_pages_is_less_than_two_kilobytes() -> None:
    assert len((WEB / "live.js").read_bytes()) < 2_048


def test_example_page_has_only_public_views_and_escapes_their_names() -> None:
    views = [
        LiveView(name="here", kind="presence", expiry="60s", public=True),
        LiveView(name="who", kind="presence", expiry="60s", people=True),
    ]

    text, policy = _page(views)

    assert b"here&quot;" in text
    assert b"who" not in text.replace(b"who is", b"")[: text.index(b"<script")]
    assert "unsafe" not in policy


def test_page_writes_text_and_never_markup() -> None:
    text = (WEB / "page.html").read_text("utf-8")

    assert [] == [name for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write") if name in text]
