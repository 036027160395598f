r"""The Redis keys of folds: content, writer and lifetime of each.

======================================  ======  ==============================================================
key (after ``{app/fold/topic/part}:v2:``)  type    holds
======================================  ======  ==============================================================
``meta``                                hash    token, owner, fence, clock, record_clock, late, epoch, definition, topics,
                                                topic_id, log (fingerprints of what was folded), lost (number of offsets that
                                                the broker has lost), reads_blocks (token of an owner that can read outbox
                                                entries of several records), reads_packed (of one that can read packed groups),
                                                format (3 while a group may be packed, 2 while the outbox may have an entry of
                                                several records); while a range is in progress: to, cursor, cap, arrived, digest;
                                                if the quiet period sets itself: learned, and quiet while a range is in progress
``due``                                 zset    group that is a hash → timer (ms): it is checked one quiet period after this time
``timers``                              zset    batch of the timers of packed groups → the lowest of these (see
                                                ``lua/shared/timers.lua``)
``first``                               zset    group → first offset of its open fold
``open``                                hash    group → packed group: its numbers and a map of its changed names (see
                                                ``codec.py``); most small groups are packed
``group:<group>``                       hash    of any other group: changed name → value or ``""``, or, with kept events, first
                                                offset of a run → its events; ``\xff`` → packed numbers of the group
``ids:<group>``                         hash    with ``dedupe_by``: digest of an event's id → offset of the event
``outbox``                              zset    packed sealed records of one script, in a row → the lowest of their first offsets
``flush``                               set     groups to emit at an operator's request, or ``*``
``drop``                                hash    group → request to drop it: first offset of the fold, user and reason
``dropped``                             hash    group → its dropped fold: first offset, number of events, last offset, partition
                                                clock, and the request (see ``drop_request.py``)
======================================  ======  ==============================================================

The writer of a shard is the worker whose token is in ``meta``; only ``flush`` and ``drop`` are written by ``streams-app groups``.
``meta`` is stored until ``streams-app reset`` removes it; a group in ``due``, ``first``, ``open``, ``group:`` and ``ids:`` until it
is sealed, and in ``timers`` until its time has come; ``outbox`` until the broker has acknowledged the records; ``flush`` and
``drop`` until the owner has processed the request;
``dropped`` for a week after the last drop of the shard, so that the command can report the result.
``docs/explained/internals.md`` explains the layout.

Two more keys are strings. ``streams-app check`` writes ``{app/}:probe`` and removes it again. ``{app/owner}:v1:replay`` is the
lease of a running replay of the dead letters of a fold or subscriber: who runs it, and since when. It expires 30 s after a replay
was killed.
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
    open: str
    timers: str


def shard_tag(app_id: str, fold: str, topic: str, partition: int) -> str:
    """Return the hash tag ``{app/fold/topic/partition}`` of a shard, braces included."""
    return f"{{{app_id}/{fold}/{topic}/{partition}}}"


def shard_keys(app_id: str, fold: str, topic: str, partition: int) -> ShardKeys:
    """Return the keys of a shard. The settings have checked that no argument contains a brace or a slash."""
    base = f"{shard_tag(app_id, fold, topic, partition)}:{STATE_VERSION}"
    return ShardKeys(
        f"{base}:meta", f"{base}:due", f"{base}:first", f"{base}:outbox", f"{base}:group:", f"{base}:flush", f"{base}:drop",
        f"{base}:dropped", f"{base}:ids:", f"{base}:open", f"{base}:timers",
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
