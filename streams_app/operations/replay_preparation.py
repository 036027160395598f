"""Prepares replays: which class replays the dead letters of a component, and what an audit line says of a replay.

The command line and the console prepare their replays here, so that both replay the same events.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streams_app.clock import Clock
from streams_app.operations.dead_letter import DeadLetterSelection
from streams_app.operations.replay import DeadLetterReplay, ReplayProgress
from streams_app.operations.replay_destinations import FoldDestination, ReplayOverride, SubscriberDestination
from streams_app.operations.store_replay import StoreReplay
from streams_app.settings import Settings
from streams_app.subscribers.declaration.loading import subscription_named
from streams_app.subscribers.declaration.subscription import Subscription, dead_letter_topic


def prepare_replay(
    settings: Settings, selection: DeadLetterSelection, clock: Clock,
    *, limit: int | None = None, again: bool = False, interrupted: bool = False, dry_run: bool = False,
) -> DeadLetterReplay | StoreReplay:  # fmt: skip
    """Return a replay of the selected dead letters of a fold, read store or subscriber; it is not started.

    Args:
        limit: Maximum number of events; None: no limit.
        again: Whether to repeat events that were replayed before; for a read store, they are always repeated.
        interrupted: Whether to replay interrupted events of a subscriber, which may have been handled.
        dry_run: Whether to count only and send nothing.

    Raises:
        ConfigurationError: No such component is declared.
    """
    name = selection.renamed or selection.component
    if selection.kind == "store":
        return StoreReplay(settings, settings.read_store(name), selection, clock, limit=limit, dry_run=dry_run)
    destination: FoldDestination | SubscriberDestination
    if selection.kind == "subscriber":
        is_exact = bool(selection.event_sources or selection.positions)
        override = ReplayOverride(interrupted, selection.event_ids, is_exact)
        destination = SubscriberDestination(settings, subscription_as(settings, name, selection.component), override)
    else:
        destination = FoldDestination(settings.app_id, settings.fold(name), settings.limits)
    return DeadLetterReplay(settings, destination, selection, clock, limit=limit, again=again, dry_run=dry_run)


def subscription_as(settings: Settings, name: str, former: str) -> Subscription:
    """Return a subscriber with the dead-letter topic that it had under a former name, which may be the present one."""
    found = subscription_named(settings, name)
    return found if former == name else replace(found, dead_letters=dead_letter_topic(found.topic, former))


def replay_facts(
    selection: DeadLetterSelection, done: ReplayProgress, *, interrupted: bool, again: bool, is_complete: bool
) -> dict[str, Any]:
    """Return what the audit line of a replay says."""
    overrides = {"interrupted": interrupted} if selection.kind == "subscriber" else {}
    return {
        selection.kind: selection.renamed or selection.component, **overrides,
        "reason": ",".join(sorted(selection.reasons)) or "any", "again": again, "events": done.replayed,
        "refused": done.rejected.total(), "complete": is_complete,
    }  # fmt: skip


def progress_text(done: ReplayProgress) -> str:
    """Return how far a replay is."""
    if not done.read:
        return f"searching for events that were replayed before: {done.searched} of {done.offsets}"
    return f"{done.read} of {done.offsets} read, {done.replayed} replayed, {done.rejected.total()} rejected again"
