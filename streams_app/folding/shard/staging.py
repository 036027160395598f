"""What can be done ahead of the script that folds a chunk, which would hold Redis for too long with all of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Final

from streams_app.folding.core.record import Sealed
from streams_app.folding.store.arguments import Arguments, Bounds
from streams_app.folding.store.portions import Ahead, Portion, portions_of
from streams_app.folding.store.shard_store import ShardStore

Marks = tuple[str, int, int]

NAMES_HELD: Final = 70
"""Of groups that are left for the script that folds they are as much as one more group."""


@dataclass(slots=True)
class Staged:
    """What was done ahead.

    Attributes:
        rest: Of the chunk, for the script that folds it.
        ended: Groups that had ended before it: sealed.
        joint: Groups that ended together with a session of it: in the outbox, sealed once the fence has moved.
        sessions: Of the chunk, in the outbox beyond the fence.
        opened: How many groups.
        attempt: Of the last portion; "" where nothing was staged.
        names_held: Of groups in ``rest``.
        repeated: Of ``ended`` and ``joint`` some may be missing, as a reply was lost.
    """

    rest: Arguments
    ended: list[Sealed] = field(default_factory=list)
    joint: list[Sealed] = field(default_factory=list)
    sessions: list[Sealed] = field(default_factory=list)
    opened: int = 0
    attempt: str = ""
    names_held: int = 0
    repeated: bool = False

    @property
    def held(self) -> int:
        """Groups, or as much as they, that the script which folds will look at one by one."""
        return (self.rest.size if self.attempt else self.rest.others) + self.names_held // NAMES_HELD

    @property
    def ahead(self) -> Ahead:
        """How much was done."""
        return Ahead(len(self.sessions), self.opened, len(self.joint))


async def stage(
    store: ShardStore,
    marks: Marks,
    arguments: Arguments,
    bounds: Bounds,
    partitions: int,
    arrived_ms: int | None = None,
    *,
    always: bool = False,
) -> Staged:
    """Does what can be done ahead, if it is too much for one script: see ``stage.lua``.

    Nothing new is seen before the script that folds the chunk has moved the fence over it: a repetition begins anew, and so does
    another owner.

    Args:
        store: Of the shard.
        marks: Token of the owner, highest offset folded, end of the chunk.
        arguments: Of the chunk.
        bounds: Of the fold.
        partitions: Partition count of the source.
        arrived_ms: When the range arrived; None: it had been waiting.
        always: However little it seems to be.

    Raises:
        RefusedError: To be claimed again.
        redis.exceptions.RedisError: Outcome unknown; to be called again.
    """
    portions = list(portions_of(arguments, whole=not always))
    if len(portions) <= 1 and not always:
        return Staged(arguments)
    done = Staged(replace(arguments, closed=[], plain=[]))
    held: set[bytes] = set()
    attempt, number = secrets.token_hex(4), 0
    portions.reverse()
    while portions:
        number += 1
        part, left = _without(portions.pop(), held)
        portion = await store.stage(
            *marks, part, bounds,
            attempt=attempt, number=number, gaps_close=arguments.gaps_close, partitions=partitions, arrived_ms=arrived_ms,
        )  # fmt: skip
        if portion is None:
            # Should Redis have come back from before that meanwhile, nothing is staged, and the script that folds must refuse.
            return Staged(replace(arguments, closed=[], plain=[]), attempt=f"{attempt}:0")
        if any(portion.rest):
            portions.append(portion.rest)
        done.rest.closed += left.sessions + portion.held.sessions
        done.rest.plain += left.plain + portion.held.plain
        held.update(session.sealed.member for session in portion.held.sessions)
        done.sessions += portion.staged
        done.joint += portion.joint
        done.ended += portion.sealed
        done.opened += portion.opened
        done.names_held += portion.names_held
        done.repeated |= portion.repeated
    done.attempt = f"{attempt}:{number}"
    return done


def _without(portion: Portion, held: set[bytes]) -> tuple[Portion, Portion]:
    """Leaves out groups of which something was left before: what follows is for the script that folds the chunk."""
    if not held:
        return portion, Portion([], [])
    parts = [Portion([], []), Portion([], [])]
    for session in portion.sessions:
        parts[session.sealed.member in held].sessions.append(session)
    for group in portion.plain:
        parts[group[0] in held].plain.append(group)
    return parts[0], parts[1]
