"""Checks the arguments of a test kit: subscribers, or a catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streams_app.events.declaration import Event
from streams_app.settings import Settings
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.subscriber import Subscriber


def given_faults(declared: Sequence[object], settings: object) -> list[str]:
    """Check the arguments of a :class:`.SubscriberTester`; return a sentence for each fault, none if they are valid.

    Args:
        declared: The subscribers, or one catalogue.
        settings: The settings; None: the defaults.
    """
    faults = [
        f"{one!r} is neither a subscriber nor a Catalogue" for one in declared if not isinstance(one, (Subscriber, Catalogue))
    ]
    if not declared or (len(declared) > 1 and any(isinstance(one, Catalogue) for one in declared)):
        faults.append("SubscriberTester takes subscribers, or one catalogue")
    if settings is not None and not isinstance(settings, Settings):
        faults.append(f"settings = {settings!r} is not a Settings object, as in Settings(app_id=…, events=…, subscribers=…)")
    return faults


def catalogue_of_given(declared: Sequence[Subscriber[Any, Any, Any] | Catalogue]) -> Catalogue:
    """Return the given catalogue, or a new one that contains the given subscribers and their events."""
    for one in declared:
        if isinstance(one, Catalogue):
            return one
    subscribers = [one for one in declared if isinstance(one, Subscriber)]
    events = dict.fromkeys(one.source for one in subscribers if isinstance(one.source, Event))
    return Catalogue(events=tuple(events), subscribers=subscribers)
