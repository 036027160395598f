"""The in-memory scripts of the test kit and of local mode reply as the scripts on a real server do."""

from __future__ import annotations

from itertools import count
from typing import Any

import redis.asyncio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streams_app.delivery.scripts import FencedError
from streams_app.events.headers import identity_of
from streams_app.local.scripts import MemoryScripts
from streams_app.subscribers.state.keys import HOUR_MS, SubscriberKeys, rate_key
from streams_app.subscribers.state.store import AttemptEntry, Begin, RateStore, SubscriberScripts, SubscriberStore
from streams_app.subscribers.state.token_bucket import TokenBucket
from tests.conftest import Names

NOW_MS = 1_700_000_000_000
NAMES = [identity_of(name, [("ce_source", source)]) for name in ("o1", "o2") for source in (b"", b"/eu")]
OFFSETS = st.integers(0, 6)
TOKENS = st.sampled_from("ab")
ENTRIES = st.builds(AttemptEntry, st.integers(1, 3), st.integers(0, 2), st.sampled_from([0, NOW_MS]))
BEGINS = st.lists(st.builds(Begin, OFFSETS, ENTRIES, st.sampled_from(["", *NAMES])), max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), TOKENS, st.sampled_from([None, 0, 3]), st.booleans()),
        st.tuples(st.just("begin"), TOKENS, BEGINS, st.integers(0, 3)),
        st.tuples(
            st.just("end"), TOKENS, st.lists(OFFSETS, max_size=3), st.lists(st.tuples(OFFSETS, ENTRIES)), OFFSETS, st.just("a note")
        ),
        st.tuples(st.just("learn"), TOKENS, st.lists(st.tuples(OFFSETS, st.sampled_from(NAMES)), max_size=3)),
        st.tuples(st.just("lose"), st.sampled_from(["marks", "everything"])),
        st.tuples(st.just("forget"), TOKENS),
    ),
    max_size=12,
)  # fmt: skip
SECOND_US = 1_000_000
NUMBERS = count()
CLAIM = ("claim", "a", 0, False)
ONE = ("begin", "a", [Begin(1, AttemptEntry(1), NAMES[0])], 0)


class Side:
    """Two owners of one partition, with one kind of scripts."""

    def __init__(self, scripts: Any, keys: SubscriberKeys) -> None:
        self._scripts, self._keys = scripts, keys
        self._stores = {token: self._store(token) for token in "ab"}

    def _store(self, token: str) -> SubscriberStore:
        return SubscriberStore(self._scripts, self._keys, token, remember_ms=HOUR_MS)

    async def does(self, kind: str, token: str, *given: Any) -> Any:
        """Return the reply that an owner gets, or its error."""
        store = self._stores[token]
        try:
            match kind, given:
                case "claim", (low, is_repeated):
                    return await store.claim(low, is_repeated=is_repeated)
                case "begin", (events, hours):
                    return await store.begin(events, NOW_MS + hours * HOUR_MS)
                case "end", (finished, waiting, low, metadata):
                    return await store.end(finished, waiting, low, metadata)
                case "learn", (ids,):
                    return await store.learn(ids, NOW_MS)
                case _:
                    # As by a process that has lost its count of begun attempts.
                    self._stores[token] = self._store(token)
        except FencedError as error:
            return str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([CLAIM, ONE, ("begin", "a", [Begin(2, AttemptEntry(1), NAMES[0])], 1)])
@example([CLAIM, ONE, ("forget", "a"), ONE])
@example([CLAIM, ONE, ("forget", "a"), ("end", "a", [1], [], 2, "a note")])
@example([CLAIM, ONE, ONE, ("forget", "a"), ONE])
@example([CLAIM, ONE, ("lose", "marks"), ("claim", "a", 3, False)])
@example([CLAIM, ("claim", "b", 0, False), ("claim", "a", 0, True), ("end", "a", [1], [], 2, "a note")])
@example([CLAIM, ("lose", "everything"), ("end", "a", [1], [], 2, "a note")])
@given(STEPS)
async def test_memory_replies_like_the_scripts(
    redis_client: redis.asyncio.Redis, names: Names, steps: list[tuple[Any, ...]]
) -> None:
    keys = SubscriberKeys(f"{names.app_id}.{next(NUMBERS)}", "ship", "orders", 0)
    memory = MemoryScripts(lambda: NOW_MS)
    there, here = Side(SubscriberScripts(redis_client), keys), Side(memory, keys)
    every_key = [*keys.state, *keys.ids(NOW_MS + 3 * HOUR_MS, 4 * HOUR_MS)]
    for step in [*steps, ("claim", "b", None, False)]:
        match step:
            case "lose", "everything":
                await redis_client.delete(*every_key)
                memory.wipe()
                continue
            case "lose", _:
                await redis_client.delete(keys.state[0])
                memory.lose(keys.state[0])
                continue

        assert await there.does(*step) == await here.does(*step)
    await redis_client.delete(*every_key)


HOUR_US = 1_000 * HOUR_MS
LEASES = st.lists(st.tuples(TOKENS, st.integers(0, 5)), max_size=10)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([("a", 0), ("b", 5), ("a", 5), ("a", 1)])
@given(LEASES)
async def test_memory_leases_like_the_script(redis_client: redis.asyncio.Redis, names: Names, steps: list[tuple[str, int]]) -> None:
    key = rate_key(f"{names.app_id}.{next(NUMBERS)}", "ship")
    # So slow that nothing is added while the test runs.
    bucket = TokenBucket(HOUR_US, 7 * HOUR_US)
    there, here = SubscriberScripts(redis_client), MemoryScripts(lambda: NOW_MS)
    for token, wanted in steps:
        (one, workers), (other, others) = [await RateStore(scripts, key, token, bucket).lease(wanted) for scripts in (there, here)]

        assert (one.granted, workers) == (other.granted, others)
        assert (one.wait_us > 0) == (other.wait_us > 0)
        assert 0 <= other.wait_us - one.wait_us < 600 * SECOND_US
    await redis_client.delete(key)


async def test_ids_expire_after_their_time(names: Names) -> None:
    now_ms = NOW_MS
    memory = MemoryScripts(lambda: now_ms)
    store = SubscriberStore(memory, SubscriberKeys(names.app_id, "ship", "orders", 0), "a", remember_ms=HOUR_MS)
    await store.claim(0)
    await store.begin([Begin(1, AttemptEntry(1), NAMES[0])], NOW_MS)
    now_ms += 3 * HOUR_MS

    assert [None] == await store.begin([Begin(2, AttemptEntry(1), NAMES[0])], NOW_MS)
