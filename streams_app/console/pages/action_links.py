"""Links from pages to actions; it stands alone, because pages of several kinds have them, and actions know pages."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import msgspec

from streams_app.checking.facts import Declarations
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


def replay_links(settings: Settings, declarations: Declarations, topic: str, *, position: str = "") -> dict[str, ActionLink]:
    """Return the replay for each component that writes dead letters into a topic, by kind and name, such as ``fold:likes``.

    Args:
        position: Only the event at this position of the source, as ``3:1041``; empty: all.
    """
    writers = {
        **{f"fold:{one.name}": one.dead_letters for one in settings.folds},
        **{f"store:{one.name}": one.dead_letters for one in settings.read_stores},
        **{f"subscriber:{one.subscriber.name}": one.dead_letters for one in declarations.workload.subscriptions},
    }
    if not settings.console.allow_actions:
        return {}
    only = {"offset": position} if position else {}
    texts = {of: "Replay it…" if position else f"Replay those of {of.replace(':', ' ')}…" for of in writers}
    return {
        of: ActionLink("replay", texts[of], action_path("replay", of=of, **only))
        for of, written in writers.items()
        if written == topic
    }


def offered(settings: Settings, *links: tuple[str, str, dict[str, str]]) -> list[ActionLink]:
    """Return links to actions, given by name, text and values; none if the console has no actions."""
    if not settings.console.allow_actions:
        return []
    return [ActionLink(action, text, action_path(action, **values)) for action, text, values in links]
