"""Packed groups in a simulation: the size from which a group is not packed, and what schedules do with packed groups.

The ledger checks the effects of packed groups. The numbers that are counted here show that there were any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import redis

from streams_app.delivery import scripts
from streams_app.folding.store import codec
from streams_app.folding.store.codec import INFO_FIELD, StoredGroup, parts_of
from streams_app.folding.store.keys import ShardKeys
from streams_app.folding.store.scripts import FoldScripts

if TYPE_CHECKING:
    from tests.simulation.world import World

PACKED_BYTES = (codec.PACKED_BYTES, 5, codec.PACKED_BYTES, 9)
"""Maximum sizes of the names of a packed group: two names need more than 5 bytes, and three names more than 9."""


@contextmanager
def packed_bytes(seed: int) -> Iterator[None]:
    """In every other schedule, lower the size from which a group is not packed, in Python and in the scripts."""
    limit, text_of, before = PACKED_BYTES[seed % len(PACKED_BYTES)], scripts.script_text, f"PACKED_BYTES = {codec.PACKED_BYTES}"
    assert before in text_of(FoldScripts.package, "shared/group")

    def limited(package: str, name: str) -> str:
        return text_of(package, name).replace(before, f"PACKED_BYTES = {limit}")

    with patch.object(codec, "PACKED_BYTES", limit), patch.object(scripts, "script_text", limited):
        yield


def stored_group(client: redis.Redis, keys: ShardKeys, member: bytes) -> StoredGroup | None:
    """Return the numbers of a group, packed or not; None if Redis does not have it."""
    packed: Any = client.hget(keys.open, member.decode())
    if packed:
        return StoredGroup.unpack(parts_of(packed)[0])
    numbers: Any = client.hget(keys.group_prefix + member.decode(), INFO_FIELD)  # type: ignore[arg-type]
    return StoredGroup.unpack(numbers) if numbers else None


class PackedGroups:
    """Counts what scripts do with packed groups."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._packed: set[bytes] = set()

    def runs(self, name: str, keys: ShardKeys) -> None:
        """Read which groups are packed before a script runs, and count the remains of a script that failed half-way."""
        if name in ("fold", "seal", "unpack"):
            client: Any = self._world.server.client
            self._packed = set(client.hkeys(keys.open))
            if self._packed - set(client.zrange(keys.first, 0, -1)):
                self._world.count("packed-remains")
            if self._hashes(keys, self._packed):
                self._world.count("packed-twice")

    def ran(self, name: str, keys: ShardKeys) -> None:
        """Count the groups that a script has packed, and those that are packed no longer."""
        if name in ("fold", "unpack"):
            client: Any = self._world.server.client
            packed = set(client.hkeys(keys.open))
            counts = self._world.counts
            counts["packed"] = counts.get("packed", 0) + len(packed - self._packed)
            word = "outgrown" if name == "fold" else "unpacked"
            counts[word] = counts.get(word, 0) + len(self._hashes(keys, self._packed - packed))

    def _hashes(self, keys: ShardKeys, groups: set[bytes]) -> list[bytes]:
        """Return those of some groups that are stored as a hash."""
        client = self._world.server.client
        return [group for group in groups if client.exists(keys.group_prefix + group.decode())]
