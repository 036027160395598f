"""Removes the state of a component from Redis: the one removal of ``streams-app reset``.

The state of a partition is removed by several commands. Meanwhile, a worker may own the state of a live view or journal, or claim
it. The workers of a fold or subscriber must be stopped for a reset, but one may be started. So ``meta`` first receives a format
that no version reads. From then on, every script rejects its caller: no worker adds to the state, and none claims it. ``meta`` is
removed last; the next claim then finds no state. After an interruption, the rest of the state stays closed, so no worker ever uses
a part of a state.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from redis.asyncio import Redis

from streams_app.delivery.scripts import script_text
from streams_app.errors import RESET_FORMAT, ConfigurationError
from streams_app.fold import FOLD_NAME
from streams_app.operations.groups import redis_of
from streams_app.requirements.components import ComponentKind
from streams_app.settings import Settings

SCANNED: Final = 1_000
UNLINKED: Final = 500
"""Maximum number of keys that one command removes."""

_META: Final = re.compile(rb"\{[^}]*\}:[^:]*:meta")
"""Matches the key ``meta`` of a partition; keys that contain the name of a group or page may end alike."""


async def keys_of(settings: Settings, kind: ComponentKind, name: str) -> list[bytes]:
    """List every Redis key of a component, even if it is no longer declared."""
    declared = ", ".join(kind.names(settings)) or "none"
    if not FOLD_NAME.fullmatch(name):
        # The name becomes part of a Redis pattern, in which "*" would match every component.
        raise ConfigurationError([f"{name!r} is not the name of a {kind.what} (a-z, 0-9, _ and -); declared are: {declared}"])
    keys = await scanned_keys(settings, kind, name)
    if not keys:
        raise ConfigurationError([f"there is nothing of a {kind.what} {name!r} in Redis; declared are: {declared}"])
    return keys


async def scanned_keys(settings: Settings, kind: ComponentKind, name: str) -> list[bytes]:
    """List every Redis key of a component, whose name is valid; empty if there is none."""
    async with redis_of(settings) as redis:
        return await _scanned(redis, _patterns(settings, kind, name))


def _patterns(settings: Settings, kind: ComponentKind, name: str) -> tuple[str, ...]:
    return () if kind.state is None else kind.state(settings.app_id, name)


async def remove_state(settings: Settings, kind: ComponentKind, name: str) -> None:
    """Remove the state of a component: every key, also those that a worker adds while the command runs.

    Raises:
        TryAgainError: Redis does not answer. The call may be repeated; until then, no worker uses what is left.
    """
    patterns = _patterns(settings, kind, name)
    async with redis_of(settings) as redis:
        closed = _by_tag(await _scanned(redis, patterns))
        for keys in closed.values():
            for meta in _metas(keys):
                await _close(redis, meta)
        # Workers may have added keys before their partition was closed. A partition that they have added since is none of ours.
        left = _by_tag(await _scanned(redis, patterns))
        for tag in left.keys() & closed.keys():
            metas = _metas(left[tag])
            await _unlink(redis, [key for key in left[tag] if key not in metas])
            await _unlink(redis, metas)


async def _close(redis: Redis, meta: bytes) -> None:
    await redis.register_script(script_text("streams_app.delivery", "close"))(keys=[meta], args=[RESET_FORMAT])


def _metas(keys: Iterable[bytes]) -> list[bytes]:
    return [key for key in keys if _META.fullmatch(key)]


async def _scanned(redis: Redis, patterns: Collection[str]) -> list[bytes]:
    return [key for pattern in patterns async for key in redis.scan_iter(match=pattern, count=SCANNED)]


async def _unlink(redis: Redis, keys: Sequence[bytes]) -> None:
    for at in range(0, len(keys), UNLINKED):
        await redis.unlink(*keys[at : at + UNLINKED])


def _by_tag(keys: Iterable[bytes]) -> Mapping[bytes, list[bytes]]:
    """Group keys by their hash tag: the keys of one tag are in the same slot of a Redis cluster."""
    found: dict[bytes, list[bytes]] = defaultdict(list)
    for key in keys:
        found[key[: key.index(b"}")]].append(key)
    return found
