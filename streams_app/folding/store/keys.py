r"""Every Redis key of the project, in one table.

======================================  ======  ==============================================================
key (after ``{app/fold/topic/part}:v2:``)  type    holds
======================================  ======  ==============================================================
``meta``                                hash    token, owner, fence, clock, record_clock, late, epoch, definition, topics,
                                                topic_id, log (fingerprints of what was folded), lost
                                                (offsets the broker has lost); while a range is in progress:
                                                to, cursor, cap, arrived, digest
``due``                                 zset    group → timer: it is looked at once it has been silent since then (ms)
``first``                               zset    group → first offset of its open fold
``group:<group>``                       hash    sidecar: name → last value or ""; ``\xff`` → packed numbers (see ``codec.py``)
``outbox``                              zset    packed sealed record → its first offset
``flush``                               set     groups an operator wants emitted, or ``*``
``drop``                                hash    group → request to drop it, see ``drop_request.py``
``dropped``                             hash    group → its dropped fold, see ``drop_request.py``
======================================  ======  ==============================================================

Beside them ``{app/}:probe``, a string, which ``streams-app check`` writes and removes again, and ``{app/owner}:v1:replay``, a
string: who puts dead letters of this fold or subscriber back, and since when. It is there while a replay runs, and expires 30 s
after one that was killed.

Owner of all of them: the worker whose token is in ``meta``; ``flush`` and ``drop`` are written by ``streams-app groups``.
Lifetime: ``meta`` as long as the fold is deployed (removed by ``streams-app reset``); ``due``, ``first`` and ``group:`` until the
group is sealed; ``outbox`` until the broker has acknowledged; ``flush`` and ``drop`` until the owner has done it; ``dropped`` for
an hour, so that the command learns what became of its request. The hash tag comes first and holds validated parts only, so that a
brace in a group key cannot move a key to another slot of a Redis Cluster. ``v2`` is the state version: a worker of another version
does not touch these keys.

A timer is never later than the moment from which the silence of its group is counted: an event of an open group moves the numbers
in its sidecar and leaves the timer alone; when it goes off, it is set anew (``seal.lua``). That is one write a quiet period instead
of one an event, to the one structure whose cost grows with the groups that are open.

The sidecar is a hash, not a plain set: Redis 7.0 stores a small hash in half the memory of a small set of strings, the
numbers of the group ride along in it, and ``keep = "last"`` needs the value beside the name.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

STATE_VERSION = "v2"
EVERYTHING = "*"
"""In ``flush``: every open group. No member is called so, because it begins with its type."""

APP_PATTERN = "{{{app_id}/*"
"""``SCAN`` pattern of every key of an application; a format string."""


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of one shard, in the order in which scripts take them."""

    meta: str
    due: str
    first: str
    outbox: str
    group_prefix: str
    flush: str
    drop: str
    dropped: str


def shard_tag(app_id: str, fold: str, topic: str, partition: int) -> str:
    """Return the hash tag of a shard, braces included."""
    return f"{{{app_id}/{fold}/{topic}/{partition}}}"


def shard_keys(app_id: str, fold: str, topic: str, partition: int) -> ShardKeys:
    """Return the keys of one (fold, source topic, partition).

    Args:
        app_id: Validated by the settings, like fold and topic: none of them contains a brace or a slash.
        fold: Name of the fold.
        topic: Source topic.
        partition: Source partition.
    """
    base = f"{shard_tag(app_id, fold, topic, partition)}:{STATE_VERSION}"
    return ShardKeys(
        f"{base}:meta", f"{base}:due", f"{base}:first", f"{base}:outbox", f"{base}:group:", f"{base}:flush", f"{base}:drop",
        f"{base}:dropped",
    )  # fmt: skip


def probe_key(app_id: str) -> str:
    """Return the key that ``streams-app check`` writes. It belongs to no shard, because no fold has an empty name."""
    return f"{{{app_id}/}}:probe"


def replay_key(address: str) -> str:
    """Return the key of the lease of a replay.

    Args:
        address: ``app/owner``; the owner is a fold or a subscriber, which share one namespace.
    """
    return f"{{{address}}}:v1:replay"


def owner_text() -> str:
    """Return a text that tells operators which process owns a group."""
    return f"{socket.gethostname()} pid {os.getpid()}"
