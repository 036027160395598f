"""A chunk in portions, each of which one script can do ahead of the one that folds the chunk (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from streams_app.folding.core.record import Sealed
from streams_app.folding.store.arguments import Arguments, Closed, Plain

STAGED_RECORDS: Final = 200
STAGED_BYTES: Final = 200_000
"""Of the sessions in one script: no script may hold Redis longer than 20 ms, however many processes want its core."""

STAGED_GROUPS: Final = 120
STAGED_NAMES: Final = 600
"""Of the groups that one script opens or goes on with; a group may have more names."""

SINGLE_GROUPS: Final = 320
SINGLE_NAMES: Final = 1_600
"""Of a chunk that is not staged: many small scripts cost more than one."""


class Portion(NamedTuple):
    """What one script takes of a chunk.

    Attributes:
        sessions: That begin and end within the chunk.
        plain: Groups.
    """

    sessions: list[Closed]
    plain: list[Plain]


class Ahead(NamedTuple):
    """How much was done ahead of the script that folds a chunk, which compares it.

    Attributes:
        staged: Sessions in the outbox beyond the fence.
        opened: Groups.
        ended_ahead: Groups that ended together with a session, in the outbox.
    """

    staged: int = 0
    opened: int = 0
    ended_ahead: int = 0


NOTHING: Final = Ahead()


class Portioned(NamedTuple):
    """What a script did with a portion.

    Attributes:
        held: What it left, as a bound may close the group.
        opened: Groups.
        sealed: Groups that had ended before.
        staged: Sessions.
        joint: Groups that ended together with one of its sessions.
        rest: What was too much for one script.
        names_held: That were read of the groups of ``held``.
        repeated: It had done that before, and the reply was lost: what it sealed then is not told again.
    """

    held: Portion
    opened: int
    sealed: list[Sealed]
    staged: list[Sealed]
    joint: list[Sealed]
    rest: Portion
    names_held: int = 0
    repeated: bool = False


def portions_of(arguments: Arguments, *, whole: bool = True) -> Iterator[Portion]:
    """All of a chunk but its ``groups``, as much as one script may take. What there is of a group is in offset order.

    Args:
        arguments: Of the chunk.
        whole: A single portion where that is not too much.
    """
    if whole and _is_small(arguments):
        yield Portion(arguments.closed, arguments.plain)
        return
    sessions: list[Closed] = []
    plain: list[Plain] = []
    size = names = 0
    for session, group in _in_order(arguments):
        if len(sessions) >= STAGED_RECORDS or size >= STAGED_BYTES or len(plain) >= STAGED_GROUPS or names >= STAGED_NAMES:
            yield Portion(sessions, plain)
            sessions, plain, size, names = [], [], 0, 0
        if session is not None:
            sessions.append(session)
            size += len(session.packed)
        if group is not None:
            plain.append(group)
            names += len(group[3]) // 2
    if sessions or plain:
        yield Portion(sessions, plain)


def _is_small(arguments: Arguments) -> bool:
    return (
        len(arguments.closed) <= STAGED_RECORDS
        and len(arguments.plain) <= SINGLE_GROUPS
        and sum(len(group[3]) for group in arguments.plain) <= 2 * SINGLE_NAMES
        and sum(len(session.packed) for session in arguments.closed) <= STAGED_BYTES
    )


def _in_order(arguments: Arguments) -> Iterator[tuple[Closed | None, Plain | None]]:
    """Sessions, each group after the last of its own, and groups without sessions evenly between them."""
    members = [session.sealed.member for session in arguments.closed]
    last_at = {member: at for at, member in enumerate(members)}
    after = {last_at[group[0]]: group for group in arguments.plain if group[0] in last_at}
    alone = iter([group for group in arguments.plain if group[0] not in last_at])
    sessions_each = len(members) // (len(arguments.plain) - len(after) + 1) + 1
    for at, session in enumerate(arguments.closed):
        yield session, after.get(at)
        if at % sessions_each == 0 and (group := next(alone, None)):
            yield None, group
    for group in alone:
        yield None, group
