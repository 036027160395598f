r"""The Redis keys of folds: content, writer and lifetime of each.

======================================  ======  ==============================================================
key (after ``{app/fold/topic/part}:v2:``)  type    holds
======================================  ======  ==============================================================
``meta``                                hash    token, owner, fence, clock, record_clock, late, epoch, definition, topics,
                                                topic_id, reads_blocks (token of an owner that can read outbox
                                                entries of several records), log (fingerprints of what was folded), lost
                                                (offsets the broker has lost); while a range is in progress:
                                                to, cursor, cap, arrived, digest
``due``                                 zset    group → timer (ms): the group is checked one quiet period later
``first``                               zset    group → first offset of its open fold
``group:<group>``                       hash    sidecar: name → value or ""; ``\xff`` → packed numbers (see ``codec.py``)
``outbox``                              zset    packed sealed records in a row → their lowest first offset
``flush``                               set     groups to emit at an operator's request, or ``*``
``drop``                                hash    group → request to drop it, see ``drop_request.py``
``dropped``                             hash    group → its dropped fold, see ``drop_request.py``
``ids:<group>``                         hash    with ``dedupe_by``: digest of an event's id → offset of the event
======================================  ======  ==============================================================

Two more keys are strings. ``streams-app check`` writes ``{app/}:probe`` and removes it again. ``{app/owner}:v1:replay`` is the
lease of a running replay of the dead letters of a fold or subscriber: who runs it, and since when. It expires 30 s after a replay
was killed.

The writer of a shard is the worker whose token is in ``meta``; only ``flush`` and ``drop`` are written by ``streams-app groups``.
``meta`` is stored until ``streams-app reset`` removes it; ``due``, ``first``, ``group:`` and ``ids:`` until the group is sealed;
``outbox`` until the broker has acknowledged the records; ``flush`` and ``drop`` until the owner has processed the request;
``dropped`` for a week, so that the command can report the result. The hash tag comes first and contains validated parts only, so
that a brace in a group key cannot move a key to another slot of a Redis Cluster. ``v2`` is the state version: a worker of another
version does not touch these keys.

The timer of a group is never later than the time from which its silence counts. An event of an open group updates the sidecar and
not the timer; a timer that fires too early is set again by ``seal.lua``. So ``due``, the one structure whose cost grows with the
number of open groups, is written once per quiet period instead of once per event.

The sidecar is a hash, not a plain set: Redis 7.0 stores a small hash in half the memory of a small set of strings, the hash also
contains the numbers of the group, and ``keep = "last"`` needs the value beside the name.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

STATE_VERSION = "v2"
EVERYTHING = "*"
"""Member of ``flush`` that requests every open group. It cannot be a group, because the bytes of a group begin with a type tag."""

APP_PATTERN = "{{{app_id}/*"
"""Format string of the ``SCAN`` pattern that matches every key of an application."""


def fold_pattern(app_id: str, fold: str) -> str:
    """Return the ``SCAN`` pattern of all keys of a fold, with any source and any version of the state."""
    return f"{{{app_id}/{fold}/*"


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
    ids_prefix: str


def shard_tag(app_id: str, fold: str, topic: str, partition: int) -> str:
    """Return the hash tag ``{app/fold/topic/partition}`` of a shard, braces included."""
    return f"{{{app_id}/{fold}/{topic}/{partition}}}"


def shard_keys(app_id: str, fold: str, topic: str, partition: int) -> ShardKeys:
    """Return the keys of a shard. The settings have checked that no argument contains a brace or a slash."""
    base = f"{shard_tag(app_id, fold, topic, partition)}:{STATE_VERSION}"
    return ShardKeys(
        f"{base}:meta", f"{base}:due", f"{base}:first", f"{base}:outbox", f"{base}:group:", f"{base}:flush", f"{base}:drop",
        f"{base}:dropped", f"{base}:ids:",
    )  # fmt: skip


def probe_key(app_id: str) -> str:
    """Return the key that ``streams-app check`` writes. It belongs to no shard, because no fold has an empty name."""
    return f"{{{app_id}/}}:probe"


def replay_key(address: str) -> str:
    """Return the key of the lease of a replay. ``address`` is ``app/owner``: folds and subscribers share one namespace."""
    return f"{{{address}}}:v1:replay"


def owner_text() -> str:
    """Return ``<host> pid <process id>``, by which operators recognize the owner of a shard."""
    return f"{socket.gethostname()} pid {os.getpid()}"
