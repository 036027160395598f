"""Links from pages to actions; it stands alone, because pages of several kinds have them, and actions know pages."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import msgspec

from streams_app.settings import Settings

ACTIONS_PATH = "/actions"


class ActionLink(msgspec.Struct, frozen=True):
    """A link to an action, which shows what it would do before it does it."""

    action: str
    text: str
    link: str


def action_path(action: str, **values: str) -> str:
    """Return the path of an action on an object."""
    return f"{ACTIONS_PATH}/{action}?{urlencode(values, quote_via=quote, errors='surrogateescape')}"


def offered(settings: Settings, *links: tuple[str, str, dict[str, str]]) -> list[ActionLink]:
    """Return links to actions, given by name, text and values; none if the console has no actions."""
    if not settings.console.allow_actions:
        return []
    return [ActionLink(action, text, action_path(action, **values)) for action, text, values in links]
