"""Finds and removes a key in the state of folds, journals and live views in Redis, and in read stores, beside running workers.

Each removal in Redis is a script that makes the command the owner of the shard in which it has found the key. The worker of the
shard then claims it again, so that nothing that it has in memory is written back. Without a find, nothing is written.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from streams_app.delivery.scripts import FencedError
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.fold import Fold
from streams_app.folding.core.auto_quiet import without_groups
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.journal.core.block import DamagedBlockError, decode, encode, encode_packed, last_of, packed, position, stored_bytes
from streams_app.journal.core.chunk import received
from streams_app.journal.core.entry import Row
from streams_app.journal.core.repack import LEVEL
from streams_app.journal.reading.entries import keys_meant
from streams_app.journal.store.journal_store import STAGED_BYTES, JournalScripts, JournalShardReader, JournalStore
from streams_app.journal.store.keys import JournalKeys, journal_keys
from streams_app.journal.store.segment import Segment
from streams_app.live.store.keys import ViewKeys, presence_keys
from streams_app.live.store.view_store import LiveScripts, ViewStore
from streams_app.operations.forget.part import Forgetting
from streams_app.operations.groups import StoredShard, rows_of, stored_shards
from streams_app.operations.journal import MAX_CLAIMS, statuses_of
from streams_app.operations.live import shards_of
from streams_app.operations.outbox_blocks import ShortenedBlock, blocks_in, without
from streams_app.read_store.core.store import ReadableStore, check_formats
from streams_app.read_store.registry import open_store
from streams_app.settings import JournalSettings, LiveView, ReadStoreSettings

PAGE: Final = 1_000
REWRITTEN: Final = 500
"""Maximum number of blocks of a journal or outbox that one script replaces."""

EVENTS: Final = "events"
UNSENT: Final = "records not yet sent"
LAST_EVENTS: Final = "times of last events, from which the quiet period is learned"
DAMAGED: Final = "damaged blocks that may have its events (journal drop removes their day)"

BY: Final = "streams-app forget"


class FoldPart:
    """The open groups, unsent records and requests of a fold, and what was learned of its quiet period if that sets itself."""

    has_offsets = True

    def __init__(self, forgetting: Forgetting, fold: Fold) -> None:
        self.where, self.fills = f"fold {fold.name}", fold.output
        self._forgetting, self._fold, self._redis = forgetting, fold, forgetting.redis

    async def find(self) -> Counter[str]:
        found: Counter[str] = Counter()
        redis: Any = self._redis  # redis-py has other types for arguments that are bytes
        for shard in await self._shards():
            end = self._end_of(shard)
            for row in await rows_of(self._redis, shard, [(member, 0.0) for member in self._forgetting.key.members]):
                if row.first_offset < end:
                    found += Counter({"open groups": 1, "events in open groups": row.events})
            found[UNSENT] += sum(block.removed for block in await self._blocks(shard))
            for member in self._forgetting.key.members:
                keys = shard.keys
                asked = (redis.hexists(keys.drop, member), redis.hexists(keys.dropped, member), redis.sismember(keys.flush, member))
                found["requests of operators"] += sum([int(await stored) for stored in asked])
            if shard.fence < end:  # otherwise the key may have new events
                found += Counter({LAST_EVENTS: (await self._learned(ShardStore(FoldScripts(self._redis), shard.keys)))[2]})
        return found

    async def remove(self, *, is_last: bool) -> Counter[str]:
        """Remove open groups at once; unsent records only in the end: until then, they may be sent, and are removed downstream."""
        removed: Counter[str] = Counter()
        scripts = FoldScripts(self._redis)
        for shard in await self._shards():
            store = ShardStore(scripts, shard.keys)
            first, *others = _pages(await self._blocks(shard)) if is_last else [[]]
            learned, rest, last_events = await self._learned(store)
            gone = await store.forget(
                secrets.token_hex(8), self._forgetting.key.members, self._end_of(shard), first,
                learns=self._fold.auto_quiet is not None, learned=learned, rest=rest,
            )  # fmt: skip
            for page in others:
                removed[UNSENT] += (await store.forget(secrets.token_hex(8), [], 0, page)).records
            removed += Counter({
                "open groups": gone.groups, "events in open groups": gone.events, "requests of operators": gone.requests,
                UNSENT: gone.records, LAST_EVENTS: 0 if gone.has_changed else last_events,
            })  # fmt: skip
            if gone.has_changed:
                raise TryAgainError(f"{shard} has just stored what it has learned of the quiet period")
        return removed

    async def _learned(self, store: ShardStore) -> tuple[bytes, bytes, int]:
        """Return what was learned of the quiet period, the same without the key, and in how many groups the key was in it."""
        learned = await store.learned()
        return learned, *(without_groups(learned, self._forgetting.key.members) if learned else (b"", 0))

    async def unfinished(self) -> list[str]:
        shards = await self._shards()
        unsent = [f"a record of {shard} is not sent yet" for shard in shards if await self._blocks(shard)]
        return self._forgetting.unread(self._fold.source, {shard.partition: shard.fence + 1 for shard in shards}) + unsent

    async def _shards(self) -> list[StoredShard]:
        return await stored_shards(self._redis, self._forgetting.settings, self._fold.name)

    def _end_of(self, shard: StoredShard) -> int:
        return self._forgetting.end_of(self._fold.source, shard.partition)

    async def _blocks(self, shard: StoredShard) -> list[ShortenedBlock]:
        """Return the blocks of the outbox that have records of the key, of events before the end, and what stays of them."""
        members, end = self._forgetting.key.members, self._end_of(shard)
        found = [
            without(block, lambda record: record.member in members and record.first_offset < end)
            async for block in blocks_in(self._redis, shard.keys.outbox)
        ]
        return [block for block in found if block is not None]


def _pages(blocks: Sequence[ShortenedBlock]) -> list[list[ShortenedBlock]]:
    """Split blocks into pages, each for one script; there is at least one page."""
    pages: list[list[ShortenedBlock]] = [[]]
    size = 0
    for block in blocks:
        size += len(block.block) + len(block.rest)
        if pages[-1] and (size > STAGED_BYTES or len(pages[-1]) == REWRITTEN):
            pages.append([])
            size = len(block.block) + len(block.rest)
        pages[-1].append(block)
    return pages


class JournalPart:
    """The events of the key in a journal: blocks without other keys are removed, and blocks with other keys are rewritten."""

    has_offsets, fills = True, ""

    def __init__(self, forgetting: Forgetting, journal: JournalSettings) -> None:
        self.where = f"journal {journal.name}"
        self._forgetting, self._journal = forgetting, journal
        self._keys: tuple[bytes, ...] = ()
        with suppress(ConfigurationError):  # no event of the journal can have the key, such as an empty record key
            self._keys = keys_meant(journal, forgetting.key.typed) if forgetting.key.members else ()
        self._scripts = JournalScripts(forgetting.redis)

    async def find(self) -> Counter[str]:
        for _ in range(MAX_CLAIMS):
            try:
                return await self._found()
            except FencedError:
                continue  # a segment was packed or removed meanwhile
        raise TryAgainError("its segments are being packed: repeat the command")

    async def remove(self, *, is_last: bool) -> Counter[str]:
        removed: Counter[str] = Counter()
        for number, status in (await self._statuses()).items():
            keys = self._keys_in(number)
            for segment in () if status is None else status.segments:
                if await self._may_have(keys, number, segment):
                    store = JournalStore(self._scripts, keys, secrets.token_hex(8), BY)
                    assert status is not None
                    removed[EVENTS] += await self._remove_in(store, number, status.partitions, segment.first)
        return removed

    async def _found(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for number, status in (await self._statuses()).items():
            for segment in () if status is None else status.segments:
                found += await self._count(self._keys_in(number), number, segment)
        return found

    async def _may_have(self, keys: JournalKeys, partition: int, segment: Segment) -> bool:
        """Return whether a segment has events of the key; also True if it was packed or removed meanwhile."""
        try:
            return _is_named(segment, self._keys) or bool((await self._count(keys, partition, segment))[EVENTS])
        except FencedError:
            return True

    async def unfinished(self) -> list[str]:
        statuses = await self._statuses()
        read = {number: status.fence + 1 for number, status in statuses.items() if status is not None}
        return self._forgetting.unread(self._journal.source, read)

    async def _statuses(self) -> dict[int, Any]:
        return await statuses_of(self._forgetting.redis, self._forgetting.settings.app_id, self._journal)

    def _keys_in(self, partition: int) -> JournalKeys:
        return journal_keys(self._forgetting.settings.app_id, self._journal.name, self._journal.source, partition)

    async def _count(self, keys: JournalKeys, partition: int, segment: Segment) -> Counter[str]:
        reader = JournalShardReader(self._scripts)
        found, end = Counter[str](), self._forgetting.end_of(self._journal.source, partition)
        for key in self._keys:
            async for block in _blocks_with(partial(reader.scan, keys, segment), key):
                rows = _rows(segment, block, key)
                found[DAMAGED] += int(rows is None)
                found[EVENTS] += sum(row.key == key and row.offset < end for row in rows or ())
        return found

    async def _remove_in(self, store: JournalStore, partition: int, partitions: int, first: int) -> int:
        """Remove the events in one segment, under an own claim; return their number.

        The worker claims the partition again meanwhile, and the keeper of the worker may then replace the blocks of the segment.
        In both cases, the segment is read again under another claim.
        """
        for _ in range(MAX_CLAIMS):
            claim = await store.claim("", partitions)
            if claim is None:
                raise TryAgainError(f"Redis has lost partition {partition} meanwhile: repeat the command once a worker has read it")
            segment = next((one for one in claim.segments if one.first == first), None)
            if segment is None:
                return 0  # expired meanwhile
            try:
                return await self._rewrite(store, partition, segment)
            except FencedError:
                continue
        raise TryAgainError(f"a worker has taken partition {partition} back {MAX_CLAIMS} times meanwhile: repeat the command")

    async def _rewrite(self, store: JournalStore, partition: int, segment: Segment) -> int:
        end, count = self._forgetting.end_of(self._journal.source, partition), 0
        for key in self._keys:
            removed: list[bytes] = []
            added: list[bytes] = []
            gone: dict[int, int] = {}
            async for block in _blocks_with(partial(store.scan, segment), key):
                rows = _rows(segment, block, key) or []
                kept = [row for row in rows if row.key != key or row.offset >= end]
                if len(kept) == len(rows):
                    continue
                gone |= {row.offset: received(row) for row in rows if row.key == key and row.offset < end}
                removed.append(block)
                added += _encoded(segment, kept)
                if len(removed) >= REWRITTEN or sum(map(len, added)) >= STAGED_BYTES:
                    segment, count = await _replace_blocks(store, segment, removed, added, gone), count + len(gone)
                    removed, added, gone = [], [], {}
            if removed or _is_named(segment, [key]):
                about = replace(segment, largest=tuple(pair for pair in segment.largest if pair[0] != key))
                segment, count = await _replace_blocks(store, about, removed, added, gone), count + len(gone)
        return count


async def _blocks_with(scan: Callable[[bytes], Awaitable[list[bytes] | None]], key: bytes) -> AsyncIterator[bytes]:
    """Yield the blocks of a segment that may contain rows of a key.

    Raises:
        FencedError: The segment was removed, or has other blocks now.
    """
    after = position(key, 0)
    while True:
        blocks = await scan(after)
        if blocks is None:
            raise FencedError("journal-scan", "generation")
        for block in blocks:
            yield block
            if last_of(block)[0] != key:
                return  # a block that ends with a later key may begin with the last rows of this one
        if not blocks:
            return
        after = blocks[-1]


def _rows(segment: Segment, block: bytes, key: bytes) -> list[Row] | None:
    """Return the rows of a block that may contain rows of a key; None if it is damaged."""
    if segment.form == "raw" and last_of(block)[0] != key:
        return []  # a block of another key
    try:
        return decode(block)
    except DamagedBlockError:
        return None


def _is_named(segment: Segment, keys: Sequence[bytes]) -> bool:
    return any(key in keys for key, _ in segment.largest)


def _encoded(segment: Segment, rows: Sequence[Row]) -> list[bytes]:
    """Encode the rows of a block that stay, as a block of the same kind; no block if none stays."""
    if not rows:
        return []
    if segment.form == "packed":
        return [encode_packed(rows[-1].key, rows[-1].offset, packed(rows), LEVEL)]
    return [encode(rows)]


async def _replace_blocks(
    store: JournalStore, segment: Segment, removed: Sequence[bytes], added: Sequence[bytes], gone: dict[int, int]
) -> Segment:
    """Replace blocks, and return the segment afterwards; ``gone`` has the size of each removed event by its offset."""
    of_segment = {offset: size for offset, size in gone.items() if segment.last is None or offset <= segment.last}
    after = replace(
        segment,
        entries=max(0, segment.entries - len(of_segment)),
        received_bytes=max(0, segment.received_bytes - sum(of_segment.values())),
        stored_bytes=max(0, segment.stored_bytes - stored_bytes(removed) + stored_bytes(added)),
    )
    if not await store.forget(after, removed, added):
        raise FencedError("journal-forget", "generation")
    return after


class ViewPart:
    """The page with the name of the key, and the items with this name on other pages, of a live view of a topic."""

    has_offsets, fills = False, ""

    def __init__(self, forgetting: Forgetting, view: LiveView) -> None:
        self.where = f"live view {view.name}"
        self._forgetting, self._view, self._redis = forgetting, view, forgetting.redis
        self._names = forgetting.key.names

    async def find(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for keys in await self._shards():
            for page in self._names:
                found["pages"] += int(await self._is_stored(keys, page))
                found["items"] += int(await self._redis.zcard(f"{keys.items_prefix}{page}"))
            found["items"] += len(await self._items(keys))
        return found

    async def remove(self, *, is_last: bool) -> Counter[str]:
        removed: Counter[str] = Counter()
        scripts = LiveScripts(self._redis)
        for keys in await self._shards():
            store = ViewStore(scripts, keys, secrets.token_hex(8), has_data=True, expiry_ms=self._view.expiry_ms, keep=0)
            pages, items = await store.forget(self._names, await self._items(keys))
            removed += Counter({"pages": pages, "items": items})
        return removed

    async def unfinished(self) -> list[str]:
        read = {}
        for number, keys in enumerate(await self._shards()):
            fence: Any = await self._redis.hget(keys.meta, "fence")
            read[number] = 0 if fence is None else int(fence) + 1
        return self._forgetting.unread(self._view.source, read)

    async def _shards(self) -> list[ViewKeys]:
        return await shards_of(self._redis, self._forgetting.settings.app_id, self._view)

    async def _is_stored(self, keys: ViewKeys, page: str) -> bool:
        stored: Any = await self._redis.hexists(keys.pages, page)
        return bool(stored) or await self._redis.zscore(keys.dropped, page) is not None

    async def _items(self, keys: ViewKeys) -> list[tuple[str, str]]:
        """Return page and name of each item that has the name of the key, on pages that have another name."""
        found: list[tuple[str, str]] = []
        cursor: Any = 0
        while True:
            scanned: Any = await self._redis.hscan(keys.pages, cursor, count=PAGE)
            cursor, pages = scanned
            pairs = [(page.decode(), item) for page in pages for item in self._names if page.decode() not in self._names]
            async with self._redis.pipeline(transaction=False) as pipe:
                for page, item in pairs:
                    pipe.zscore(f"{keys.items_prefix}{page}", item)
                scores = await pipe.execute()
            found += [pair for pair, score in zip(pairs, scores, strict=True) if score is not None]
            if not cursor:
                return list(dict.fromkeys(found))


class PresencePart:
    """The page with the name of the key in a view of presence. Open browsers report themselves again: they are new."""

    has_offsets, fills = False, ""

    def __init__(self, forgetting: Forgetting, view: LiveView) -> None:
        self.where = f"live view {view.name}"
        prefix = presence_keys(forgetting.settings.app_id, view.name).here_prefix
        self._redis, self._keys = forgetting.redis, [f"{prefix}{name}" for name in forgetting.key.names]

    async def find(self) -> Counter[str]:
        return Counter({"pages": sum([int(await self._redis.exists(key)) for key in self._keys])})

    async def remove(self, *, is_last: bool) -> Counter[str]:
        return Counter({"pages": sum([int(await self._redis.unlink(key)) for key in self._keys])})

    async def unfinished(self) -> list[str]:
        return []


class StorePart:
    """The rows or documents of the key in a read store, also those of folds that it no longer reads."""

    has_offsets, fills = False, ""

    def __init__(self, forgetting: Forgetting, declared: ReadStoreSettings) -> None:
        self.where = f"read store {declared.name}"
        self._forgetting, self._declared = forgetting, declared
        folds = (*declared.folds, *(fold.name for fold in forgetting.settings.folds), *forgetting.retired_folds)
        self._groups = [(fold, column) for fold in dict.fromkeys(folds) for column in forgetting.key.columns]

    async def find(self) -> Counter[str]:
        store = open_store(self._declared)
        try:
            if not await _exists(store):
                return Counter()
            return Counter({"values": len(await store.names(self._groups))})
        finally:
            await store.close()

    async def remove(self, *, is_last: bool) -> Counter[str]:
        store = open_store(self._declared)
        try:
            if not await _exists(store):
                return Counter()
            check_formats(self._declared.name, await store.checkpoints())
            return Counter({"rows": await store.remove_groups(self._groups)})
        finally:
            await store.close()

    async def unfinished(self) -> list[str]:
        store = open_store(self._declared)
        try:
            checkpoints = await store.checkpoints() if await _exists(store) else {}
        finally:
            await store.close()
        outputs = [self._forgetting.settings.fold(name).output for name in self._declared.folds]
        read = {topic: {tp.partition: offset for tp, offset in checkpoints.items() if tp.topic == topic} for topic in outputs}
        return [why for topic in outputs for why in self._forgetting.unread(topic, read[topic])]


async def _exists(store: ReadableStore) -> bool:
    """Return whether the store was ever initialised; a store without tables has nothing of any key."""
    return not await store.missing()
