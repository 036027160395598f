"""Packed groups in a simulation: the size from which a group is not packed, and what schedules do with packed groups.

The ledger checks the contents of groups. Here it is checked that older versions never meet a packed group, and that every open
group has a timer in time, because without one it would stay open until max hold. It is counted how many packed groups there were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import redis

from streams_app.delivery import scripts
from streams_app.folding.store import codec
from streams_app.folding.store.codec import INFO_FIELD, StoredGroup, parts_of, timers_in
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
    numbers: Any = client.hget(keys.group_prefix + member.decode(), INFO_FIELD)
    return StoredGroup.unpack(numbers) if numbers else None


class PackedGroups:
    """Checks and counts what scripts do with packed groups."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._packed: set[bytes] = set()

    def runs(self, name: str, keys: ShardKeys) -> None:
        """Read which groups are packed before a script runs, and count the remains of scripts that failed half-way."""
        if name not in ("fold", "seal", "unpack", "claim"):
            return
        client: Any = self._world.server.client
        self._packed = set(client.hkeys(keys.open))
        self._check_timers(client, keys)
        if self._packed:
            self._check_format(client, keys)
            self._count("packed-remains", bool(self._packed - set(client.zrange(keys.first, 0, -1))))
            self._count("packed-twice", bool(self._hashes(keys, self._packed)))

    def _check_format(self, client: Any, keys: ShardKeys) -> None:
        """Check that older versions do not read a shard with packed groups: with format numbers, or without them."""
        has_fence, stored_format, offsets = client.hmget(keys.meta, ["fence", "format", "lost"])
        if has_fence and (stored_format != b"3" or b"packed groups" not in (offsets or b"")):
            self._world.report_fault("format", f"groups are packed, and the shard has format {stored_format} and lost={offsets}")

    def _open_groups(self, client: Any, keys: ShardKeys) -> Iterator[tuple[bytes, StoredGroup]]:
        """Return the open groups which no range in progress may change; not what scripts that failed half-way have left."""
        epoch, fence, cursor = client.hmget(keys.meta, ["epoch", "fence", "cursor"])
        if epoch is None or fence is None:
            return
        for member, first_offset in client.zrange(keys.first, 0, -1, withscores=True):
            group = stored_group(client, keys, member)
            if group is None or group.first_offset != first_offset or group.epoch not in (b"", epoch):
                continue
            if group.last_offset <= int(fence) or member <= (cursor or b""):
                yield member, group

    def _check_timers(self, client: Any, keys: ShardKeys) -> None:
        """Check that the timer of every open group is not later than the time from which its silence counts.

        This holds before each script, also if others have failed half-way.
        """
        due, timers = dict(client.zrange(keys.due, 0, -1, withscores=True)), _batched(client, keys)
        for member, group in self._open_groups(client, keys):
            is_packed = member in self._packed
            timer = timers.get(group.first_offset) if is_packed else due.get(member)
            silent_ms = group.silent_from_ms - group.shorter_ms
            if timer is None or timer > silent_ms:
                form = "packed group" if is_packed else "group"
                self._world.report_fault("timer", f"the {form} {member!r} is silent from {silent_ms}, and its timer is {timer}")

    def _check_sealed(self, client: Any, keys: ShardKeys, quiet_ms: int, clock_ms: int) -> None:
        """Check that a seal which has nothing more to do has left no group whose quiet period is over."""
        for member, group in self._open_groups(client, keys):
            due_ms = group.silent_from_ms - group.shorter_ms + quiet_ms
            if due_ms < clock_ms:
                self._world.report_fault("timer", f"{member!r} is open, and has been due for {clock_ms - due_ms} ms")

    def ran(self, name: str, keys: ShardKeys, given: Mapping[str, Any], reply: Any) -> None:
        """Count the groups that a script has packed or unpacked; check that none is packed while older workers run."""
        if name not in ("fold", "seal", "unpack") or reply[0] == b"refused":
            return
        client: Any = self._world.server.client
        packed = set(client.hkeys(keys.open))
        new, mix = packed - self._packed, self._world.mix
        self._count("packed", len(new))
        self._count("unpacked" if name == "unpack" else "outgrown", len(self._hashes(keys, self._packed - packed)))
        if given.get("singly") and new:
            self._world.report_fault("older", f"{name} has packed {new} although an older worker runs")
        if name == "seal" and given.get("quiet_ms") is not None and reply[2] == b"0":
            self._check_sealed(client, keys, int(given["quiet_ms"]), int(reply[1]))
        # A seal follows the check for older workers, except that a late request may have packed a group.
        if name == "seal" and given["singly"] and packed and "lossy" not in mix.faults and not mix.fragile and not mix.dying:
            self._world.report_fault("older", f"{packed} stay packed although an older worker runs")

    def _count(self, word: str, number: int) -> None:
        counts = self._world.counts
        counts[word] = counts.get(word, 0) + number

    def _hashes(self, keys: ShardKeys, groups: set[bytes]) -> list[bytes]:
        """Return those of some groups that are stored as a hash."""
        client = self._world.server.client
        return [group for group in groups if client.exists(keys.group_prefix + group.decode())]


def _batched(client: Any, keys: ShardKeys) -> dict[int, int]:
    """Return of each first offset when seal reads its timer: not before the time of the batch."""
    found: dict[int, int] = {}
    for batch, lowest in client.zrange(keys.timers, 0, -1, withscores=True):
        for first_offset, timer in timers_in(batch):
            read_at = max(int(lowest), timer)
            found[first_offset] = min(read_at, found.get(first_offset, read_at))
    return found
