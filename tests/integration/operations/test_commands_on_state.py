"""An operator's commands against running workers: explain, flush, dead letters, reset."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.cli.commands import run
from tests.helpers.folding.checker import Outcome, event, outcome_of
from tests.helpers.kafka.topics import create_topics, delete_topic, produce, read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import Stage, metric

LIMIT_SECONDS = 120
OPEN = "streams_app_open_groups"


class TwoFolds(Stage):
    """A second fold of the same source reads another changed field."""

    @property
    def other_output(self) -> str:
        return self.names.topic("other")

    @property
    def path(self) -> Path:
        return self.folder / "streams.toml"

    async def run(self, *words: str) -> tuple[int, str, str]:
        ran = await asyncio.to_thread(run, *words, "--config", str(self.path))
        return ran.code, ran.out, ran.err

    async def folded(self, topic: str, events: int) -> Outcome:
        """Return a topic, once that many events are in its records."""

        def enough(records: list[ConsumerRecord]) -> bool:
            return outcome_of(records).events >= events

        return outcome_of(await read_topic(self.bootstrap, topic, until=enough, timeout_seconds=LIMIT_SECONDS))


@pytest.fixture
async def stage(kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path) -> TwoFolds:
    made = TwoFolds(names, kafka.bootstrap_servers, redis_server.url, tmp_path)
    await create_topics(kafka.bootstrap_servers, [made.source, made.output, made.other_output, made.dead])
    other = f"""
[folds.other]
source = "{made.source}"
output = "{made.other_output}"
dead_letters = "{made.dead}"
group_key = "account_id"
changed = "tags"
quiet_period = "1h"
"""
    made.config(quiet_period="1h", extra=other)
    return made


def both(account: str, *names: str) -> tuple[bytes, bytes]:
    """Return an event that both folds accept."""
    return event(account, *names, tags=list(names))


async def open_groups(stage: TwoFolds) -> list[dict[str, Any]]:
    code, out, err = await stage.run("groups", "list", "--json")
    assert 0 == code, err
    return [json.loads(line) for line in out.splitlines()]


async def test_explain_and_flush_one_group_and_then_all(stage: TwoFolds) -> None:
    with stage.worker() as worker:
        await worker.wait_ready()
        await produce(
            stage.bootstrap,
            stage.source,
            [both("a", "x"), both("a", "y"), both("b", "x"), (b"1", b'{"account_id": 1, "metrics": ["z"], "tags": ["z"]}')],
        )
        await wait_until(lambda: metric(worker, OPEN) == 6, LIMIT_SECONDS, "three groups are open in both folds")
        code, text, err = await stage.run("groups", "explain", "a", "--fold", "account-metrics")
        assert 0 == code, err
        for words in (
            "a of fold account-metrics is open, and due in",
            "2 events",
            "2 changed names (x, y)",
            "once quiet for 1 h",
            f"pid {worker.pid}",
        ):
            assert words in text
        code, text, _ = await stage.run("groups", "explain", "nobody", "--fold", "account-metrics")
        assert (0, True) == (code, "nobody is not open in fold" in text)
        code, text, _ = await stage.run("groups", "explain", "1", "--fold", "account-metrics")
        assert (0, True) == (code, "1 of fold account-metrics is open" in text)

        code, out, err = await stage.run("groups", "flush", "a", "--fold", "account-metrics")
        assert (0, "flushed 1 group in 1 partition\n") == (code, out)
        assert "audit flush fold=account-metrics group='a' groups=1 by=" in err
        one = await stage.folded(stage.output, 2)
        code, _, err = await stage.run("groups", "flush", "a", "--fold", "account-metrics")
        assert (1, True) == (code, "a is not open" in err)
        code, out, _ = await stage.run("groups", "flush", "--all", "--fold", "account-metrics")
        rest = await stage.folded(stage.output, 4)
        left = await open_groups(stage)
        log = worker.log()

    assert [("flush", 2)] == [(value["fold"]["reason"], value["fold"]["events"]) for value in one.values.values()]
    assert (0, True) == (code, out.startswith("flushed 2 groups"))
    assert {b"a", b"b", b"1"} == set(rest.groups.values())
    assert {"other"} == {row["fold"] for row in left}
    assert "groups flushed on request fold=account-metrics" in log


@pytest.mark.long
async def test_flush_without_a_worker_stays_requested(stage: TwoFolds) -> None:
    with stage.worker() as worker:
        await worker.wait_ready()
        await produce(stage.bootstrap, stage.source, [both("a", "x")])
        await wait_until(lambda: metric(worker, OPEN) == 2, LIMIT_SECONDS, "the group is open in both folds")
        await worker.terminate()
    code, _, err = await stage.run("groups", "flush", "a", "--fold", "account-metrics", "--timeout", "0.5")
    with stage.worker():
        outcome = await stage.folded(stage.output, 1)

    assert 75 == code
    assert "no worker has done it within 0.7 s: the next owner of the partition" in err
    assert ["flush"] == [value["fold"]["reason"] for value in outcome.values.values()]


async def test_drop_removes_one_group_and_no_other(stage: TwoFolds) -> None:
    with stage.worker() as worker:
        await worker.wait_ready()
        await produce(stage.bootstrap, stage.source, [both("a", "x"), both("a", "y"), both("b", "x")])
        await wait_until(lambda: metric(worker, OPEN) == 4, LIMIT_SECONDS, "two groups are open in both folds")
        words = ("groups", "drop", "a", "--fold", "account-metrics")
        dry, unexplained = await stage.run(*words), await stage.run(*words, "--yes")
        before = await open_groups(stage)
        code, out, err = await stage.run(*words, "--yes", "--reason", "a loop in the importer")
        gone = await stage.run(*words)
        await produce(stage.bootstrap, stage.source, [both("a", "z")])
        await wait_until(lambda: metric(worker, OPEN) == 4, LIMIT_SECONDS, "the group is open again")
        await stage.run("groups", "flush", "--all", "--fold", "account-metrics")
        rest = await stage.folded(stage.output, 2)
        left = await open_groups(stage)
        dropped = metric(worker, "streams_app_groups_dropped_total")
        log = worker.log()

    assert (0, 4) == (dry[0], len(before))
    assert "would drop a of fold account-metrics: 2 events of " in dry[1]
    assert "2 changed names: x, y\nnothing was dropped: --yes --reason TEXT drops it\n" in dry[1]
    assert (1, True) == (unexplained[0], "--reason TEXT" in unexplained[2])
    assert (0, "dropped 1 group with 2 events, without a record\n") == (code, out)
    assert "audit drop fold=account-metrics group='a' groups=1 reason='a loop in the importer' by=" in err
    assert (1, True) == (gone[0], "a is not open" in gone[2])
    assert {b"a": 1, b"b": 1} == {group: rest.values[name]["fold"]["events"] for name, group in rest.groups.items()}
    assert {"other": 2} == {name: sum(row["fold"] == name for row in left) for name in {row["fold"] for row in left}}
    assert 1 == dropped
    assert "group dropped on request fold=account-metrics" in log
    assert "group='a'" in log
    assert "events=2 by=" in log
    assert "reason='a loop in the importer'" in log


@pytest.mark.parametrize(
    "words",
    [
        ("groups", "flush"),
        ("groups", "flush", "a", "--all"),
        ("groups", "explain", "a"),
        ("groups", "explain", "a", "--fold", "acount-metrics"),
    ],
)
async def test_ambiguous_command_is_rejected(stage: TwoFolds, words: tuple[str, ...]) -> None:
    code, _, err = await stage.run(*words)

    assert 1 == code
    assert "name a GROUP" in err or "account-metrics" in err


@pytest.mark.long
async def test_dead_letters_are_replayed_once_and_only_to_the_fold_that_rejected_them(stage: TwoFolds) -> None:
    with stage.worker() as worker:
        await worker.wait_ready()
        # The other fold finds no tags in these; one event is accepted by neither fold.
        await produce(stage.bootstrap, stage.source, [event("a", "m1"), event("a", "m2"), (b"a", b"no json")])
        await read_topic(
            stage.bootstrap, stage.dead, until=lambda dead_letters: len(dead_letters) >= 4, timeout_seconds=LIMIT_SECONDS
        )
        code, listed, err = await stage.run("dead-letters", "list", "--fold", "other", "--json")
        assert 0 == code, err
        rows = [json.loads(line) for line in listed.splitlines()]
        await worker.terminate()
    # The fix: the other fold folds metrics, too.
    stage.path.write_text(stage.path.read_text().replace('changed = "tags"', 'changed = "metrics"'))
    dry = await stage.run("dead-letters", "replay", "--fold", "other", "--reason", "no-changed", "--dry-run")
    first = await stage.run("dead-letters", "replay", "--fold", "other", "--reason", "no-changed")
    second = await stage.run("dead-letters", "replay", "--fold", "other", "--reason", "no-changed")
    with stage.worker() as worker:
        await worker.wait_ready()
        await produce(stage.bootstrap, stage.source, [both("b", "m3")])
        await wait_until(lambda: metric(worker, OPEN) == 4, LIMIT_SECONDS, "both groups are open in both folds")
        events = {(row["fold"], row["group"]): row["events"] for row in await open_groups(stage)}

    assert {("no-changed", 2), ("not-json", 1)} == {
        (reason, sum(row["reason"] == reason for row in rows)) for reason in ("no-changed", "not-json")
    }
    lasts = [out.splitlines()[-1] for _, out, _ in (dry, first, second)]
    assert ["dry run: 2 would pass now", "2 replayed", "0 replayed"] == [line.partition(", ")[0] for line in lasts]
    assert {"0 rejected again", "0 would be rejected again"} == {line.partition(", ")[2] for line in lasts}
    assert {("account-metrics", "a"): 2, ("account-metrics", "b"): 1, ("other", "a"): 2, ("other", "b"): 1} == events


@pytest.mark.apache
async def test_reset_rejects_wildcards_and_keeps_other_folds(stage: TwoFolds) -> None:
    with stage.worker() as worker:
        await worker.wait_ready()
        await produce(stage.bootstrap, stage.source, [both("a", "m")])
        await wait_until(lambda: metric(worker, OPEN) == 2, LIMIT_SECONDS, "the group is open in both folds")
        await worker.terminate()
    rejected = [await stage.run("reset", "--fold", name, "--yes") for name in ("*", "[ao]*")]
    unknown = await stage.run("reset", "--fold", "other-one", "--yes")
    before = len(await open_groups(stage))
    done = await stage.run("reset", "--fold", "other", "--yes")

    assert [1, 1] == [code for code, _, _ in rejected]
    assert [] == [err for _, _, err in rejected if "is not the name of a fold" not in err or "account-metrics, other" not in err]
    assert (1, True) == (unknown[0], "there is nothing of a fold 'other-one'" in unknown[2])
    assert (2, 0) == (before, done[0]), done[2]
    assert ["account-metrics"] == [row["fold"] for row in await open_groups(stage)]


@pytest.mark.apache
async def test_reset_starts_anew_after_a_topic_was_recreated(stage: TwoFolds) -> None:
    with stage.worker() as worker:
        await worker.wait_ready()
        await produce(stage.bootstrap, stage.source, [both("a", f"n{i}") for i in range(50)])

        async def all_folded() -> bool:
            return sum(row["events"] for row in await open_groups(stage)) == 100

        await wait_until(all_folded, LIMIT_SECONDS, "everything is folded by both")
        code, text, err = await stage.run("reset", "--fold", "account-metrics", "--yes")
        assert (1, True) == (code, "stop them first" in err), text
        await worker.terminate()
    await delete_topic(stage.bootstrap, stage.source)
    await create_topics(stage.bootstrap, [stage.source])
    await produce(stage.bootstrap, stage.source, [both("a", "again")])
    with stage.worker() as worker:
        code = await worker.wait_exit(LIMIT_SECONDS)
        log = worker.log()
    assert 1 == code, log
    assert "streams-app reset --fold" in log

    for fold in ("account-metrics", "other"):
        code, text, err = await stage.run("reset", "--fold", fold)
        assert (0, True) == (code, "nothing was changed" in text), err
        assert (0, True) == ((await stage.run("reset", "--fold", fold, "--yes"))[0], True)
    with stage.worker() as worker:
        await worker.wait_ready()

        async def is_open() -> bool:
            return [row["events"] for row in await open_groups(stage)] == [1, 1]

        await wait_until(is_open, LIMIT_SECONDS, "the event of the new topic is folded by both")
