"""The Lua and the Python implementation of closing and of stored groups agree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from streams_app.delivery.scripts import script_text
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.store.codec import StoredGroup
from streams_app.folding.store.scripts import FoldScripts
from tests.helpers.folding.scripts import EPOCH, PARTITIONS

PRELUDE = """
local call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
local arg = unpacked(ARGV[1])
local state = {epoch = arg.epoch}
local function text(number) return string.format('%.0f', number) end
"""
SHARED = {name: script_text(FoldScripts.package, f"shared/{name}") for name in ("closing", "group", "records")}
CLOSING = (
    PRELUDE
    + SHARED["closing"]
    + """
local found = {}
for i = 1, #arg.cases, 4 do
  local g = {opened = arg.cases[i], score = arg.cases[i + 1], shorter = arg.shorter}
  local reason, due = closed_by(g, arg.cases[i + 2])
  found[#found + 1] = {closes_before(g, arg.cases[i + 3]) and 1 or 0, reason, text(due)}
end
return found
"""
)
NUMBERS = (
    PRELUDE
    + SHARED["group"]
    + """
local g, epoch = numbers_of(arg.packed)
return {epoch, text(g.first), text(g.last), text(g.opened), text(g.score), text(g.events), text(g.low), text(g.high),
        text(g.names), text(g.silent), text(g.shorter), packed_of(g, epoch)}
"""
)
RECORD = (
    PRELUDE
    + SHARED["group"]
    + SHARED["records"]
    + "return record_of(arg.group, (numbers_of(arg.packed)), 'quiet', arg.due, arg.names)"
)

FIXTURES = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
async def redis(redis_server) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_server.url)
    yield client
    await client.aclose()


async def ask(redis: Redis, script: str, **arguments: Any) -> Any:
    return await redis.eval(script, 0, msgpack.packb(arguments, use_bin_type=False))


times = st.integers(0, 2**45)
spans = st.integers(0, 10) | st.integers(0, 2**40)
near = st.integers(-2, 2)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Bounds, int, int, int, int]:
    """Draw bounds, and a group whose next event is at some time, or just at one of its bounds."""
    bounds = Bounds(draw(spans), draw(spans), sessions=draw(st.booleans()))
    opened = draw(times)
    score = opened + draw(spans)
    silent = score + draw(st.just(0) | spans | st.just(bounds.hold_ms - bounds.quiet_ms + opened - score).map(abs))
    at = draw(times | st.just(opened + bounds.hold_ms) | st.just(score + bounds.quiet_ms)) + draw(near)
    return bounds, opened, score, silent, at


@FIXTURES
@given(case=cases())
async def test_redis_and_the_model_agree_when_a_group_is_over(redis: Redis, case: tuple[Bounds, int, int, int, int]) -> None:
    bounds, opened, score, silent, at = case
    quiet = {"quiet_ms": bounds.quiet_ms} if bounds.sessions else {}
    shorter = (score - opened) % (bounds.quiet_ms + 1)
    [[closes_before, reason, due]] = await ask(
        redis, CLOSING, hold_ms=bounds.hold_ms, cases=[opened, score, silent, at], shorter=shorter, **quiet
    )
    expected = bounds.closed_by(opened, silent - shorter, quiet=bounds.sessions)

    assert (bounds.closes_before(opened, score - shorter, at), expected) == (bool(closes_before), (reason.decode(), int(due)))


@pytest.mark.parametrize(
    ("at", "sessions", "expected"),
    [
        pytest.param(1_010, True, False, id="exactly the quiet period after the last"),
        pytest.param(1_011, True, True, id="a millisecond more"),
        pytest.param(1_011, False, False, id="where silence ends nothing"),
        pytest.param(1_039, False, False, id="just before the hold"),
        pytest.param(1_040, False, True, id="at the hold"),
    ],
)
async def test_bounds_are_inclusive_as_documented(redis: Redis, at: int, sessions: bool, expected: bool) -> None:
    bounds = Bounds(10, 40, sessions=sessions)
    quiet = {"quiet_ms": 10} if sessions else {}
    [[closes_before, *_]] = await ask(redis, CLOSING, hold_ms=40, cases=[1_000, 1_000, 1_000, at], shorter=0, **quiet)

    assert (expected, expected) == (bool(closes_before), bounds.closes_before(1_000, 1_000, at))


offsets = st.integers(0, 2**52)
stored = st.builds(
    lambda first, length, opened, lasted, events, low, span, names, silence, shorter: StoredGroup(
        EPOCH, first, first + length, opened, opened + lasted, events, low, low + span, names, opened + lasted + silence, shorter
    ),
    offsets, st.integers(0, 2**51), times, spans, st.integers(1, 2**40), times, spans, st.integers(0, 20_000), spans,
    st.just(0) | spans,
)  # fmt: skip


@FIXTURES
@given(group=stored)
async def test_stored_group_numbers_survive_a_round_trip_through_redis(redis: Redis, group: StoredGroup) -> None:
    epoch, *numbers, packed = await ask(redis, NUMBERS, epoch=EPOCH, packed=group.pack())

    assert group == StoredGroup(epoch, *map(int, numbers))
    assert group == StoredGroup.unpack(packed)
    assert group.pack() == packed


@FIXTURES
@given(group=stored, member=st.binary(min_size=1, max_size=8), names=st.dictionaries(st.sampled_from("uvw"), st.binary(max_size=4)))
@pytest.mark.parametrize("in_a_row", [False, True])
async def test_sealed_record_is_unpacked_as_redis_wrote_it(
    redis: Redis, group: StoredGroup, member: bytes, names: dict[str, bytes], in_a_row: bool
) -> None:
    given_names: Any = [part for item in names.items() for part in item] if in_a_row else names
    packed = await ask(
        redis, RECORD, epoch=EPOCH, packed=group.pack(), group=member, due=group.score_ms, partitions=PARTITIONS, names=given_names
    )  # fmt: skip

    assert SealedGroup(
        member, group.first_offset, group.last_offset, group.events, group.low_ms, group.high_ms, "quiet", group.score_ms,
        PARTITIONS, names,
    ) == SealedGroup.unpack(packed)  # fmt: skip
