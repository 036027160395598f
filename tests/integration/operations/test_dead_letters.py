"""Events replayed from the dead letters, as workers read them."""

from __future__ import annotations

from aiokafka.structs import ConsumerRecord

from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import read_topic
from tests.helpers.worker.site import Site

LIMIT_SECONDS = 60


async def dead_letters(site: Site, source: str, count: int) -> list[ConsumerRecord]:
    """Return at least this number of dead letters of a source."""
    return await read_topic(
        site.bootstrap,
        site.names.topic(f"{source}.dead"),
        until=lambda found: len(found) >= count,
        timeout_seconds=LIMIT_SECONDS,
    )


async def test_replayed_event_is_folded_once_and_is_dead_lettered_once_if_its_fold_was_removed(site: Site) -> None:
    await site.topics("s", "one", "two", "s.dead")
    config = site.config(site.fold("one", "s") + site.fold("two", "s"))
    app_id = site.names.app_id
    for destination in (f"{app_id}/one", f"{app_id}-other/one", f"{app_id}/old"):
        await site.send("s", [event("a", destination)], headers=[("streams-app-replay", destination.encode())], partition=2)
    with site.worker(config) as worker:
        await site.send("s", [event("a", "last"), (b"a", b"no json")], partition=2)
        outcomes = [await site.outcome(fold, count) for fold, count in (("one", 2), ("two", 1))]
        found = await dead_letters(site, "s", 3)
        await worker.terminate()
    names = [name for outcome in outcomes for value in outcome.values.values() for name in value["metrics"]]
    rejections = [
        (headers["fold"].decode(), headers["reason"].decode(), headers["source-offset"])
        for dead_letter in found
        if (headers := dict(dead_letter.headers))
    ]

    assert sorted([f"{app_id}/one", "last", "last"]) == sorted(names)
    assert [("old", "unknown-fold", b"2"), ("one", "not-json", b"4"), ("two", "not-json", b"4")] == sorted(rejections)
