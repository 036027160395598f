"""Links from pages to actions; it stands alone, because pages of several kinds have them, and actions know pages."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from streams_app.requirements.components import dead_letter_topics
from streams_app.requirements.declarations import Declarations
from streams_app.settings import Settings

ACTIONS_PATH = "/actions"

REPLAYABLE: Final = {"fold": "fold", "store": "read store", "subscriber": "subscriber"}
"""Kinds of components whose dead letters can be replayed, as headers and as pages name them."""


class ActionLink(msgspec.Struct, frozen=True):
    """A link to an action, which shows what it would do before it does it."""

    action: str
    text: str
    link: str


def action_path(action: str, **values: str) -> str:
    """Return the path of an action on an object."""
    return f"{ACTIONS_PATH}/{action}?{urlencode(values, quote_via=quote, errors='surrogateescape')}"


def replay_links(settings: Settings, declarations: Declarations, topic: str, *, position: str = "") -> dict[str, ActionLink]:
    """Return the replay for each component that writes dead letters into a topic, by kind and name, such as ``fold:likes``.

    Args:
        position: Only the event at this position of the source, as ``3:1041``; empty: all.
    """
    if not settings.console.allow_actions:
        return {}
    only = {"offset": position} if position else {}
    return {
        (of := f"{kind}:{name}"): ActionLink(
            "replay", "Replay it…" if position else f"Replay those of {kind} {name}…", action_path("replay", of=of, **only)
        )
        for (kind, name), written in dead_letter_topics(declarations.workload).items()
        if kind in REPLAYABLE and written == topic
    }


def offered(settings: Settings, *links: tuple[str, str, dict[str, str]]) -> list[ActionLink]:
    """Return links to actions, given by name, text and values; none if the console has no actions."""
    if not settings.console.allow_actions:
        return []
    return [ActionLink(action, text, action_path(action, **values)) for action, text, values in links]
