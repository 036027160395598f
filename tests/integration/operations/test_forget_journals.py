"""``streams-app forget`` in journals: segments are rewritten beside their owner and its keeper."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from streams_app.delivery.scripts import FencedError
from streams_app.journal.core.block import encode
from streams_app.journal.store.journal_store import JournalShardReader, JournalStore, NoEventsReply
from tests.helpers.journal.journals import JournalShard, row
from tests.helpers.operations.forgetting import PERSON, Application, of_others, produced, rows_in


@pytest.mark.parametrize("neighbours", ["an", "zoe", PERSON + "x", PERSON[:-1]])
async def test_events_of_a_key_leave_raw_and_packed_segments_and_those_of_other_keys_stay(
    application: Application, journal: JournalShard, neighbours: str
) -> None:
    others = ["aa", neighbours, PERSON + "\0"]
    rows = [row(key, at, at // 8, b"%d" % at) for at, key in enumerate([*others, PERSON, *others, PERSON] * 3)]
    await produced(application, len(rows))
    await journal.append(rows)
    first = (await journal.segments())[0]
    await journal.pack(first.first, rows[:8])
    before, about = of_others(await rows_in(journal)), await journal.segments()
    receipt = await application.forget()
    after = await journal.segments()

    assert {"events": 6} == dict(receipt.found["journal days"])
    assert before == await rows_in(journal)
    assert [one.entries - 2 for one in about] == [one.entries for one in after]
    assert not any(key == b"s" + PERSON.encode() for one in after for key, _ in one.largest)
    assert [one.last for one in about] == [one.last for one in after]


async def test_segment_with_nothing_but_the_key_stays_readable(application: Application, journal: JournalShard) -> None:
    await produced(application, 2)
    await journal.append([row(PERSON, 0), row(PERSON, 1)])
    await application.forget()
    (segment,) = await journal.segments()

    assert (0, 0) == (segment.entries, segment.stored_bytes)
    assert NoEventsReply(1, 1, 0) == await journal.reader.read(journal.keys, b"s" + PERSON.encode(), -1)
    assert [] == await application.traces()


async def test_keeper_that_packed_a_segment_meanwhile_does_not_bring_events_back(
    application: Application, journal: JournalShard
) -> None:
    rows = [row(PERSON, 0), row("anna", 1), row("anna", 2, 1)]
    await produced(application, 3)
    await journal.append(rows)
    (segment, _) = await journal.segments()
    packed = replace(segment, form="packed", generation="later", is_closed=True)
    await journal.store.stage(packed, [encode(sorted(rows[:2]), 3)], begins=True)
    await application.forget()
    with pytest.raises(FencedError):
        await journal.store.swap(packed, 1)

    assert [] == await application.traces()


async def test_worker_that_reclaims_the_journal_meanwhile_is_overtaken(
    application: Application, journal: JournalShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    await produced(application, 2)
    await journal.append([row(PERSON, 0), row("anna", 1)])
    remove, times = JournalStore.forget, itertools.count(1)

    async def overtaken(store: JournalStore, *arguments: Any) -> bool:
        if next(times) < 3:
            await journal.claim()
        return await remove(store, *arguments)

    monkeypatch.setattr(JournalStore, "forget", overtaken)
    receipt = await application.forget()

    assert ({"events": 1}, []) == (dict(receipt.found["journal days"]), await application.traces())


async def test_segment_that_is_packed_while_it_is_searched_is_searched_once_more(
    application: Application, journal: JournalShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(PERSON, 0), row("anna", 1), row("anna", 2, 1)]
    await produced(application, 3)
    await journal.append(rows)
    scan, times = JournalShardReader.scan, itertools.count()

    async def packed_meanwhile(reader: JournalShardReader, *arguments: Any) -> list[bytes] | None:
        if not next(times):
            await journal.pack(0, rows[:2])
        return await scan(reader, *arguments)

    monkeypatch.setattr(JournalShardReader, "scan", packed_meanwhile)
    plan = await application.plan()
    receipt = await application.forget()

    assert (1, 1) == (plan.found["journal days"]["events"], receipt.found["journal days"]["events"])
    assert [] == await application.traces()


async def test_damaged_block_that_may_have_events_of_the_key_is_reported(application: Application, journal: JournalShard) -> None:
    rows = [row("anna", 0), row(PERSON, 1), row("zoe", 2), row("zoe", 3, 1)]
    await produced(application, 4)
    await journal.append(rows)
    await journal.pack(0, rows[:3])
    await journal.damage(0)
    receipt = await application.forget()

    assert 1 == sum("journal days: still there: 1 damaged blocks" in one for one in receipt.not_yet)
