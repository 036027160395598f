"""What can be done ahead of the script that folds a chunk, which would hold Redis for too long with all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from streams_app.folding.arguments import Arguments, Closed, Plain
from streams_app.folding.record import Sealed
from streams_app.folding.store import ShardStore


@dataclass(frozen=True, slots=True)
class Staged:
    """What lies beyond the fence.

    Attributes:
        rest: Of the chunk, for the script that folds it.
        sealed: In the outbox.
        opened: How many groups.
    """

    rest: Arguments
    sealed: Sequence[Sealed] = ()
    opened: int = 0


async def stage(
    store: ShardStore, token: str, fence: int, to: int, arguments: Arguments, attempt: str, arrived_ms: int | None = None
) -> Staged:
    """Puts closed sessions into the outbox and opens groups beyond the fence, if they are too many for the script that moves it.

    Nothing of it is seen before that script has moved the fence over it: a repetition begins anew, and so does another owner.

    Args:
        store: Of the shard.
        token: Of the owner.
        fence: Highest offset folded.
        to: End of the chunk.
        arguments: Of the chunk.
        attempt: Any text that no other attempt has.
        arrived_ms: When the range arrived; None: it had been waiting.

    Raises:
        RefusedError: To be claimed again.
        redis.exceptions.RedisError: Outcome unknown; to be called again.
    """
    portions = list(arguments.portions())
    if len(portions) <= 1:
        return Staged(arguments)
    closed: list[Closed] = []
    plain: list[Plain] = [] if arguments.opens else list(arguments.plain)
    sealed: list[Sealed] = []
    for number, portion in enumerate(portions):
        held = await store.stage(
            token, fence, to, portion, attempt=attempt, begin=number == 0, gaps_close=arguments.gaps_close, arrived_ms=arrived_ms
        )
        if held is None:
            return Staged(replace(arguments, closed=[], plain=[]))
        closed += held.sessions
        plain += held.plain
        elsewhere = {session.sealed.first_offset for session in held.sessions}
        sealed += [session.sealed for session in portion.sessions if session.sealed.first_offset not in elsewhere]
    return Staged(replace(arguments, closed=closed, plain=plain), sealed, len(arguments.plain) - len(plain))
