"""``streams-app forget`` and records that wait in blocks of the outbox: only those of the key are removed."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from streams_app.delivery.batch import TP
from streams_app.folding.core.record import SealedGroup
from streams_app.operations.forget import state
from streams_app.operations.forget.part import Forgetting, ForgottenKey, TopicBounds
from streams_app.operations.forget.state import FoldPart
from streams_app.operations.outbox_blocks import ShortenedBlock, without
from tests.helpers.folding.outbox import block_of, sealed_group, shard_with
from tests.helpers.folding.scripts import edited, meta_of, outbox_of, sealed_in
from tests.helpers.folding.shapes import RUNS
from tests.helpers.operations.forgetting import PERSON, Application
from tests.simulation.redis import dying

MEMBER = b"s" + PERSON.encode()
SHAPES = st.lists(st.text("Pabc", min_size=1, max_size=6), min_size=1, max_size=4)
"""The records of each block: of the forgotten key (P), and of other keys."""


def blocks_of(shape: list[str]) -> list[list[SealedGroup]]:
    """Return blocks whose records are not in the order of their offsets."""
    offsets = (100 + 37 * number % 50 for number in range(50))
    return [[sealed_group(PERSON if key == "P" else key, next(offsets)) for key in keys] for keys in shape]


def of_others(blocks: list[list[SealedGroup]]) -> list[tuple[int, bytes]]:
    """Return score and packed records of each block without the forgotten key."""
    left = [[record for record in block if record.member != MEMBER] for block in blocks]
    return sorted((min(record.first_offset for record in block), block_of(block)) for block in left if block)


def shortened(blocks: list[list[SealedGroup]], member: bytes = MEMBER) -> list[ShortenedBlock]:
    found = [without(block_of(block), lambda record: record.member == member) for block in blocks]
    return [block for block in found if block is not None]


def part_of(application: Application, events: int = 1_000) -> FoldPart:
    """Return the part of the command that erases the key from the fold; the source has this number of events."""
    fold = application.settings.folds[0]
    bounds = {TP(fold.source, 0): TopicBounds(0, events)}
    return FoldPart(Forgetting(application.settings, application.client, ForgottenKey.of(PERSON), bounds), fold)


@settings(RUNS, max_examples=15)
@example(["P"]).via("only it")
@example(["Pab", "cPa", "abP", "abc"]).via("first, in the middle, last")
@example(["aP", "Pb", "PP"]).via("in several blocks")
@given(SHAPES)
async def test_records_of_a_key_leave_their_blocks_and_the_rest_stays(application: Application, shape: list[str]) -> None:
    blocks, count = blocks_of(shape), "".join(shape).count("P")
    store = await shard_with(application.client, application.settings, *blocks)
    await store.redis.hset(store.keys.meta, "format", "2")
    part = part_of(application)
    found, removed = await part.find(), await part.remove(is_last=True)

    assert (count, count) == (found[state.UNSENT], removed[state.UNSENT])
    assert of_others(blocks) == sorted(await sealed_in(store))
    assert 0 == (await part.find())[state.UNSENT]
    meta = await meta_of(store)
    assert ("me" == meta["token"], "2" == meta.get("format")) == (count == 0, bool(of_others(blocks)))
    await application.client.delete(store.keys.outbox)


async def test_records_of_a_key_in_many_blocks_are_removed_by_several_scripts(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "STAGED_BYTES", 300)
    monkeypatch.setattr(state, "REWRITTEN", 3)
    blocks = [[sealed_group(PERSON, at), sealed_group("a", at)] for at in range(20)]
    blocks[7][1] = sealed_group("a", 7, "x" * 2_000)
    store = await shard_with(application.client, application.settings, *blocks)
    removed = await part_of(application).remove(is_last=True)

    assert (20, of_others(blocks)) == (removed[state.UNSENT], sorted(await sealed_in(store)))


async def test_record_of_an_event_after_the_command_stays_in_its_block(application: Application) -> None:
    block = [sealed_group(PERSON, 3), sealed_group(PERSON, 12), sealed_group("a", 20)]
    store = await shard_with(application.client, application.settings, block)
    removed = await part_of(application, events=10).remove(is_last=True)

    assert 1 == removed[state.UNSENT]
    assert [(12, block_of(block[1:]))] == await sealed_in(store)


async def test_block_that_was_sent_meanwhile_does_not_come_back(application: Application) -> None:
    blocks = blocks_of(["aP"])
    store = await shard_with(application.client, application.settings, *blocks)
    await application.client.delete(store.keys.outbox)
    gone = await store.forget("forget", [], 0, shortened(blocks))

    assert (0, []) == (gone.records, await sealed_in(store))


async def test_script_that_dies_half_way_loses_no_record_of_other_keys(application: Application) -> None:
    blocks, failures = blocks_of(["aPb", "Pc", "P"]), 0
    for writes in range(10):
        store = await shard_with(application.client, application.settings, *blocks)
        try:
            await edited(store, partial(dying, writes=writes), "forget").forget("forget", [], 0, shortened(blocks))
        except ResponseError as error:
            assert "the script fails here" in str(error)
            failures += 1
        assert {b"sa", b"sb", b"sc"} == {record.member for record in await outbox_of(store)} - {MEMBER}
        await part_of(application).remove(is_last=True)
        assert of_others(blocks) == sorted(await sealed_in(store))
        await application.client.delete(store.keys.outbox)

    assert 6 == failures
