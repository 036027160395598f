"""Sessions that begin and end within a chunk, ahead of the script that folds it: together they would hold Redis for too long."""

from __future__ import annotations

from dataclasses import replace

from streams_app.folding.arguments import Arguments, Closed
from streams_app.folding.record import Sealed
from streams_app.folding.store import ShardStore


async def stage(
    store: ShardStore, token: str, fence: int, to: int, arguments: Arguments, attempt: str
) -> tuple[Arguments, list[Sealed]]:
    """Puts closed sessions into the outbox beyond the fence, if they are too many for the script that moves it.

    Nothing is sealed before that script has moved the fence over them: a repetition begins anew, and so does another owner.

    Args:
        store: Of the shard.
        token: Of the owner.
        fence: Highest offset folded.
        to: End of the chunk.
        arguments: Of the chunk.
        attempt: Any text that no other attempt has.

    Returns:
        What is left for that script, and what was staged.

    Raises:
        RefusedError: To be claimed again.
        redis.exceptions.RedisError: Outcome unknown; to be called again.
    """
    parts = list(arguments.parts())
    if len(parts) <= 1:
        return arguments, []
    rest: list[Closed] = []
    staged: list[Sealed] = []
    for number, part in enumerate(parts):
        held = await store.stage(token, fence, to, part, attempt=attempt, begin=number == 0)
        if held is None:
            return replace(arguments, closed=[]), []
        rest += held
        elsewhere = {session.sealed.first_offset for session in held}
        staged += [session.sealed for session in part if session.sealed.first_offset not in elsewhere]
    return replace(arguments, closed=rest), staged
