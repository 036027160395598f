"""Which groups of a fold are open or wait to be sent: what changed in them is on its way to the read stores."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

from streams_app.codec import member_of
from streams_app.errors import BadEventError
from streams_app.operations.explain import waiting
from streams_app.operations.groups import places_of, redis_of
from streams_app.read_store.core.asking import group_of
from streams_app.settings import Settings

ASKED: Final = 1_000
"""Groups of which Redis is asked at once."""


async def open_groups(settings: Settings, fold: str, columns: Collection[str]) -> set[str]:
    """Those of some groups that are open now.

    Args:
        settings: Settings of the application.
        fold: Name of the fold.
        columns: Groups as the column ``group_key`` has them.

    Raises:
        TryAgainError: Redis does not answer.
    """
    members: dict[bytes, str] = {}
    for column in columns:
        group = group_of(column)
        with suppress(BadEventError):  # its key was no UTF-8, and the column only tells how it reads
            members[member_of(group if isinstance(group, tuple) else (group,))] = column
    found: set[bytes] = set()
    async with redis_of(settings) as redis:
        for place in await places_of(redis, settings, fold):
            left = list(members.keys() - found)
            for begin in range(0, len(left), ASKED):
                asked: Any = left[begin : begin + ASKED]
                timers: Any = await redis.zmscore(place.keys.due, asked)
                found.update(member for member, timer in zip(asked, timers, strict=True) if timer is not None)
            # Afterwards: a group leaves the timers for the outbox.
            found.update(members.keys() & (await waiting(redis, place)).keys())
    return {members[member] for member in found}
