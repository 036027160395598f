"""Resets a subscriber to other offsets: commits the offsets, and removes the stored attempts and event ids from Redis.

No worker may run the subscriber, because Kafka rejects commits by others for a group that has members.
This module stands alone because nothing of the reset of a fold, which moves no offsets to a chosen time, applies to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.formatting import counted, parse_moment
from streams_app.kafka.admin import admin_client
from streams_app.kafka.group_offsets import member_count
from streams_app.operations.state_removal import remove_state, scanned_keys
from streams_app.requirements.components import SUBSCRIBERS
from streams_app.settings import Settings
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.state.initial_offsets import At, commit_offsets, commits_at, committed


@dataclass(frozen=True, slots=True)
class OffsetPlan:
    """What a reset of a subscriber would commit and remove.

    Attributes:
        offsets: The commit of each partition after the reset.
        present: The current commit of each partition; partitions without a commit are omitted.
        members: Number of members of the subscriber's consumer group; 0 if the broker does not report it.
    """

    offsets: dict[TP, PartitionCommit]
    present: dict[TP, PartitionCommit]
    keys: list[bytes]
    members: int

    def lines(self, name: str) -> list[str]:
        """Describe the reset of the subscriber of this name."""
        lines = [f"subscriber {name}: {counted(len(self.keys), 'key')} in Redis would be removed"]
        for tp, position in self.offsets.items():
            present = self.present.get(tp)
            now = "nothing is committed now" if present is None else f"{present.offset} is committed now"
            lines.append(f"  {tp} would be committed at {position.offset}; {now}")
        return lines

    def obstacle(self, group: str) -> str:
        """Return why the reset cannot be done now; empty if it can be."""
        return f"{counted(self.members, 'worker')} of group {group!r} running: stop them first" if self.members else ""


def moment_of(text: str, now_ms: int) -> At:
    """Convert the position to which a subscriber is reset: ``earliest``, ``latest``, or a time, see :func:`.parse_moment`.

    Raises:
        ValueError: It is none of them.
    """
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        return parse_moment(text, now_ms)
    except ValueError as error:
        raise ValueError(f"neither earliest nor latest, and {error}") from error


async def plan_offsets(settings: Settings, one: Subscription, at: At) -> OffsetPlan:
    """Return what a reset of a subscriber to ``at`` would commit and remove; a number is a time in ms. Nothing is changed yet."""
    keys = await scanned_keys(settings, SUBSCRIBERS, one.subscriber.name)
    offsets = await commits_at(settings, one, at)
    async with admin_client(settings.kafka) as client:
        members = await member_count(client, one.group)
    return OffsetPlan(offsets, await committed(settings, one, offsets), keys, members)


async def reset_offsets(settings: Settings, one: Subscription, planned: OffsetPlan) -> None:
    """Reset a subscriber as planned: first its commits, then its Redis keys.

    The commits come first because Kafka rejects them while a worker runs the subscriber; in this case nothing was changed.

    Raises:
        TryAgainError: Redis or Kafka does not answer. The call may be repeated.
    """
    await commit_offsets(settings, one, planned.offsets)
    await remove_state(settings, SUBSCRIBERS, one.subscriber.name)
