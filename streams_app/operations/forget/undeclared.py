"""State in Redis of components that are no longer declared, or have another source now: ``forget`` removes the key there, too.

No worker adds to such state, so nothing is waited for, and everything in it is from before the command. How a journal encodes keys
is known from its settings alone: a journal that is no longer declared is reported, with the command that removes it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from streams_app.errors import is_readable_format
from streams_app.fold import Fold
from streams_app.folding.store.keys import APP_PATTERN
from streams_app.folding.store.keys import STATE_VERSION as FOLD_VERSION
from streams_app.journal.store.keys import STATE_VERSION as JOURNAL_VERSION
from streams_app.live.store.keys import STATE_VERSION as VIEW_VERSION
from streams_app.operations.forget.part import Forgetting, Kept, Part
from streams_app.operations.forget.state import FoldPart, PresencePart, ViewPart
from streams_app.operations.groups import StoredShard
from streams_app.settings import LiveView, Settings

SCANNED: Final = 1_000
ALL_OFFSETS: Final = 2**53
"""Exceeds every offset: nothing in the state of a retired fold is new."""

_META: Final = re.compile(rb"\{[^/}]+/([^/}]+)/([^/}]+)/(\d+)\}:([^:]+):meta")
_MARKER: Final = re.compile(rb"\{[^/}]+/live\.([^/}]+)\}:[^:]+:marker")


class _FoundShard(NamedTuple):
    """The state of one partition; ``kind`` is ``fold``, ``live view`` or ``journal``."""

    kind: str
    name: str
    topic: str
    partition: int
    version: str
    meta: bytes

    @property
    def where(self) -> str:
        return f"{self.kind} {self.name} (no longer declared, source {self.topic})"

    @property
    def removal(self) -> str:
        option = {"fold": "--fold", "live view": "--live", "journal": "--journal"}[self.kind]
        return f"`streams-app reset {option} {self.name} --yes` removes it"


_VERSIONS: Final[Mapping[str, str]] = {"fold": FOLD_VERSION, "live view": VIEW_VERSION, "journal": JOURNAL_VERSION}


@dataclass(frozen=True, slots=True)
class UndeclaredState:
    """What Redis stores of components that are not declared.

    Attributes:
        folds: Names of the folds.
        not_searched: Descriptions of state in which the key cannot be searched for.
        kept: What of the key stays in topics that are no longer known.
    """

    parts: list[Part] = field(default_factory=list)
    folds: list[str] = field(default_factory=list)
    not_searched: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)


async def undeclared_state(forgetting: Forgetting) -> UndeclaredState:
    """Find the state of components that are not declared. Redis is scanned once, which takes about a second for a million keys."""
    found = UndeclaredState()
    declared, shards, present = (
        _declared(forgetting.settings),
        defaultdict[tuple[str, str, str], list[_FoundShard]](list),
        set[str](),
    )
    # A shorter pattern would also return the key of each open group.
    for pattern in (":*:meta", ":*:marker"):
        match = APP_PATTERN.format(app_id=forgetting.settings.app_id) + "}" + pattern
        async for key in forgetting.redis.scan_iter(match=match, count=SCANNED):
            if (marker := _MARKER.fullmatch(key)) is not None:
                present.add(marker[1].decode())
            elif (shard := _shard_of(key)) is not None and (shard.kind, shard.name, shard.topic, shard.version) not in declared:
                shards[shard[:3]].append(shard)
    for name in sorted(present - {view.name for view in forgetting.settings.live if not view.is_of_topic}):
        found.parts.append(PresencePart(forgetting, LiveView(name=name, kind="presence", expiry="5s")))
    for _, of_one in sorted(shards.items()):
        await _add(forgetting, of_one, found)
    return found


def _declared(settings: Settings) -> set[tuple[str, str, str, str]]:
    kinds = (("fold", settings.folds), ("live view", settings.live), ("journal", settings.journals))
    return {(kind, one.name, one.source, _VERSIONS[kind]) for kind, declared in kinds for one in declared}


def _shard_of(key: bytes) -> _FoundShard | None:
    match = _META.fullmatch(key)
    if match is None:
        return None
    name, topic, partition, version = (part.decode() for part in match.groups())
    prefix, dot, rest = name.partition(".")
    kind = {"live": "live view", "journal": "journal"}.get(prefix, "") if dot else "fold"
    return _FoundShard(kind, rest if dot else name, topic, int(partition), version, key) if kind else None


async def _add(forgetting: Forgetting, shards: Sequence[_FoundShard], found: UndeclaredState) -> None:
    first = shards[0]
    if first.kind == "journal":
        found.not_searched.append(f"{first.where}: its settings, which say what its keys are, are gone; {first.removal}")
    elif first.kind == "live view":
        _add_view(forgetting, shards, found)
    else:
        await _add_fold(forgetting, shards, found)


def _add_view(forgetting: Forgetting, shards: Sequence[_FoundShard], found: UndeclaredState) -> None:
    first = shards[0]
    if {shard.version for shard in shards} != {VIEW_VERSION}:
        found.not_searched.append(f"{first.where}: its state has another format; {first.removal}")
        return
    # What the view was does not matter for the removal of a page or an item.
    view = LiveView(name=first.name, kind="list", source=first.topic, page="page", expiry="1h", dead_letters="dead-letters")
    found.parts.append(RetiredViewPart(forgetting, view, first.where))


async def _add_fold(forgetting: Forgetting, shards: Sequence[_FoundShard], found: UndeclaredState) -> None:
    stored: list[StoredShard] = []
    topics: set[str] = set()
    for shard in shards:
        redis: Any = forgetting.redis
        clock, fence, outputs, found_format = await redis.hmget(shard.meta, ["clock", "fence", "topics", "format"])
        if clock is None:
            continue  # of a subscriber, which stores no keys of events
        if shard.version != FOLD_VERSION or not is_readable_format(found_format) or fence is None:
            found.not_searched.append(f"{shard.where}: its state has another format; {shard.removal}")
            return
        topics.update(orjson.loads(outputs or b"[]"))
        # What the fold was does not matter for the removal of a group.
        fold = Fold(name=shard.name, source=shard.topic, group_key="group", changed="changed", quiet_period="1s")
        stored.append(StoredShard(forgetting.settings.app_id, fold, shard.partition, int(clock), int(fence)))
    if stored:
        first = shards[0]
        found.parts.append(RetiredFoldPart(forgetting, stored, first.where))
        found.folds.append(first.name)
        unlisted = sorted(topics - {tp.topic for tp in forgetting.logs})
        if unlisted:
            found.kept.append(Kept(first.where, f"its topics are not searched and get no tombstones: {', '.join(unlisted)}"))


class RetiredFoldPart(FoldPart):
    """The state of a fold that is no longer declared."""

    def __init__(self, forgetting: Forgetting, stored: list[StoredShard], where: str) -> None:
        super().__init__(forgetting, stored[0].fold)
        self.where, self.fills, self._stored = where, "", stored

    async def unfinished(self) -> list[str]:
        return []

    async def _shards(self) -> list[StoredShard]:
        return self._stored

    def _end_of(self, shard: StoredShard) -> int:
        return ALL_OFFSETS


class RetiredViewPart(ViewPart):
    """The state of a live view that is no longer declared."""

    def __init__(self, forgetting: Forgetting, view: LiveView, where: str) -> None:
        super().__init__(forgetting, view)
        self.where = where

    async def unfinished(self) -> list[str]:
        return []
