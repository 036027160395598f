"""What can be done ahead of the script that folds a chunk, which would hold Redis for too long with all of it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile

from streams_app.folding.arguments import Arguments, Bounds, Closed, Plain
from streams_app.folding.portions import Portion, portions_of
from streams_app.folding.record import Sealed
from streams_app.folding.store import ShardStore

Marks = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Staged:
    """What was done ahead.

    Attributes:
        rest: Of the chunk, for the script that folds it.
        ended: Groups that had ended before it: sealed.
        sessions: Of the chunk, in the outbox beyond the fence.
        opened: How many groups.
        attempt: Of the last portion; "" where nothing was staged.
        repeated: Of ``ended`` some may be missing, as a reply was lost.
    """

    rest: Arguments
    ended: Sequence[Sealed] = ()
    sessions: Sequence[Sealed] = ()
    opened: int = 0
    attempt: str = ""
    repeated: bool = False


async def stage(
    store: ShardStore, marks: Marks, arguments: Arguments, bounds: Bounds, partitions: int, arrived_ms: int | None = None
) -> Staged:
    """Does what can be done ahead, if it is too much for one script: see ``stage.lua``.

    Nothing new is seen before the script that folds the chunk has moved the fence over it: a repetition begins anew, and so does
    another owner. Groups that go on are not sealed before, and hold nothing twice.

    Args:
        store: Of the shard.
        marks: Token of the owner, highest offset folded, end of the chunk.
        arguments: Of the chunk.
        bounds: Of the fold.
        partitions: Partition count of the source.
        arrived_ms: When the range arrived; None: it had been waiting.

    Raises:
        RefusedError: To be claimed again.
        redis.exceptions.RedisError: Outcome unknown; to be called again.
    """
    portions = list(portions_of(arguments))
    if len(portions) <= 1:
        return Staged(arguments)
    closed: list[Closed] = []
    plain: list[Plain] = []
    ended: list[Sealed] = []
    sessions: list[Sealed] = []
    opened, repeated = 0, False
    attempt = secrets.token_hex(4)
    for number, portion in enumerate(portions, 1):
        part, left = _without(portion, closed[-1].sealed.member if closed else None)
        done = await store.stage(
            *marks, part, bounds,
            attempt=attempt, number=number, gaps_close=arguments.gaps_close, partitions=partitions, arrived_ms=arrived_ms,
        )  # fmt: skip
        if done is None:
            # Should Redis have come back from before that meanwhile, nothing is staged, and the script that folds must refuse.
            return Staged(replace(arguments, closed=[], plain=[]), attempt=f"{attempt}:0")
        elsewhere = {session.sealed.first_offset for session in done.held.sessions}
        sessions += [session.sealed for session in part.sessions if session.sealed.first_offset not in elsewhere]
        closed += left.sessions + done.held.sessions
        plain += left.plain + done.held.plain
        ended += done.sealed
        opened += done.opened
        repeated |= done.repeated
    return Staged(replace(arguments, closed=closed, plain=plain), ended, sessions, opened, f"{attempt}:{len(portions)}", repeated)


def _without(portion: Portion, member: bytes | None) -> tuple[Portion, Portion]:
    """Leaves out a group of which the portion before has left something: what follows is the script's that folds the chunk."""
    if not portion.sessions or portion.sessions[0].sealed.member != member:
        return portion, Portion([], [])
    sessions = list(dropwhile(lambda session: session.sealed.member == member, portion.sessions))
    plain = [group for group in portion.plain if group[0] != member]
    left = portion.sessions[: len(portion.sessions) - len(sessions)], [group for group in portion.plain if group[0] == member]
    return Portion(sessions, plain), Portion(*left)
