"""``reset --emit``: if no worker can start any more, open groups are emitted all the same, once and with their ids."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streams_app.operations.reset_fold import emit_all, plan
from streams_app.settings import Settings
from tests.helpers.cli.commands import Ran, run
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import delete_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, DyingWorker, Site, until_folded

pytestmark = pytest.mark.timeout(400)

GROUPS, EACH, NEW = 10, 3, 15
ALL = GROUPS * EACH
OLD_EVENTS = [event(f"g{number % GROUPS}", f"n{number}") for number in range(ALL)]
"""Each group has an event in each third: the shorter new log cannot produce the same record id."""

EXPECTED_IDS = {f"{number}-{number + ALL - GROUPS}" for number in range(GROUPS)}
NEW_EVENTS = [event(f"g{number % GROUPS}", f"new{number}") for number in range(NEW)]


def spans(outcome: Any) -> set[str]:
    return {fold_id.rsplit(":", 1)[1] for fold_id in outcome.values}


async def reset(config: Path, *more: str) -> Ran:
    return await asyncio.to_thread(run, "reset", "--fold", "folded", *more, "--config", str(config))


async def with_yes(config: Path) -> Ran:
    """Run ``reset --emit --yes`` once the broker no longer counts the former worker as a member."""
    ran: list[Ran] = []

    async def is_permitted() -> bool:
        ran.append(await reset(config, "--emit", "--yes"))
        return "stop them first" not in ran[-1].err

    await wait_until(is_permitted, LIMIT_SECONDS, "the group has no member")
    return ran[-1]


async def emitted(config: Path) -> str:
    """Return the output of a successful run; a failure shows before the test waits for records."""
    done = await with_yes(config)
    assert 0 == done.code, done.text
    return done.out


async def opened(site: Site, quiet_period: str = "1h", **options: Any) -> Path:
    """Open ten groups, and stop their worker."""
    await site.topics("events", "folded", "events.dead", partitions=1)
    config = site.config(site.fold("folded", "events", quiet_period=quiet_period, **options))
    with site.worker(config) as worker:
        await worker.wait_ready()
        await site.send("events", OLD_EVENTS)
        await until_folded(worker, ALL)
        assert 0 == await worker.terminate()
    return config


async def fold_new_log(site: Site, old: int) -> set[str]:
    """Fold the new log with a worker; return the names that are emitted."""
    config = site.config(site.fold("folded", "events", quiet_period="1s"), "anew.toml")
    with site.worker(config) as worker:
        await worker.wait_ready()
        outcome = await site.outcome("folded", old + NEW)
        assert 0 == await worker.terminate()
    assert (0, set()) == (outcome.redelivered, outcome.differing)
    assert {f"new{number}" for number in range(NEW)} <= set(outcome.ids_of)
    return set(outcome.ids_of)


@pytest.mark.apache
async def test_open_groups_of_a_recreated_source_are_emitted_and_the_new_log_is_folded(site: Site) -> None:
    config = await opened(site)
    await site.recreate("events", partitions=1)
    await site.send("events", NEW_EVENTS)
    with site.worker(config) as worker:
        exit_code, log = await worker.wait_exit(LIMIT_SECONDS), worker.log()
    advised, would = await reset(config), await reset(config, "--emit")
    done = await emitted(config)
    outcome = await site.outcome("folded", ALL)

    assert (1, True) == (exit_code, "`streams-app reset --fold folded` to start over; with --emit" in log), log
    assert "no worker can start with them: `--emit`" in advised.out
    assert "groups flush" not in advised.out
    assert f"10 open groups and 0 records not yet sent would be emitted to {site.names.topic('folded')} first" in would.out
    assert "emitted 10 groups\nremoved\n" in done
    assert (0, EXPECTED_IDS) == (outcome.redelivered, spans(outcome))
    assert {f"n{number}" for number in range(ALL)} < await fold_new_log(site, ALL)


@pytest.mark.apache
async def test_open_groups_of_a_deleted_source_are_emitted(site: Site) -> None:
    config = await opened(site, keep="last")
    await delete_topic(site.bootstrap, site.names.topic("events"))
    advised = await reset(config)
    done = await emitted(config)
    outcome = await site.outcome("folded", ALL)
    await site.topics("events", partitions=1)
    await site.send("events", NEW_EVENTS)

    assert "no worker can start with them: `--emit`" in advised.out
    assert "emitted 10 groups\nremoved\n" in done
    assert (0, EXPECTED_IDS) == (outcome.redelivered, spans(outcome))
    assert {"flush"} == {value["fold"]["reason"] for value in outcome.values.values()}
    assert {f"n{number}" for number in range(ALL)} < await fold_new_log(site, ALL)


@pytest.mark.apache
async def test_unsent_records_of_a_dead_worker_are_emitted(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    config = site.config(site.fold("folded", "events", quiet_period="1s"))
    with DyingWorker(config, site.folder, "after-seal:1") as dying:
        await dying.wait_ready()
        await site.send("events", OLD_EVENTS)
        assert -9 == await dying.wait_exit(LIMIT_SECONDS)
    await site.recreate("events", partitions=1)
    would = await reset(config, "--emit")
    await emitted(config)
    outcome = await site.outcome("folded", ALL)

    assert " and 0 records not yet sent" not in would.out
    assert " not yet sent would be emitted" in would.out
    assert {f"n{number}" for number in range(ALL)} == set(outcome.ids_of)
    assert (0, set()) == (outcome.redelivered, outcome.differing)


@pytest.mark.apache
async def test_retired_fold_is_emitted_to_its_former_topic(site: Site) -> None:
    await opened(site)
    await site.topics("elsewhere", "elsewhere.dead", "other", partitions=1)
    config = site.config(site.fold("other", "elsewhere"), "without.toml")
    advised = await reset(config)
    await emitted(config)
    outcome = await site.outcome("folded", ALL)

    assert "no worker can start with them: `--emit`" in advised.out
    assert (0, EXPECTED_IDS) == (outcome.redelivered, spans(outcome))


@pytest.mark.apache
async def test_reset_removes_nothing_before_the_broker_has_acknowledged_all(site: Site) -> None:
    config = await opened(site)
    await delete_topic(site.bootstrap, site.names.topic("folded"))
    failed = await with_yes(config)
    await site.topics("folded", partitions=1)
    await emitted(config)
    outcome = await site.outcome("folded", ALL)

    assert (75, True, False) == (failed.code, "nothing was removed" in failed.err, "\nremoved" in failed.out), failed.text
    assert (0, EXPECTED_IDS) == (outcome.redelivered, spans(outcome))


@pytest.mark.apache
async def test_groups_stay_while_a_worker_runs_and_flush_is_suggested_if_one_can_start(site: Site) -> None:
    config = await opened(site)
    with site.worker(config) as worker:
        await worker.wait_ready()
        rejected = await reset(config, "--emit", "--yes")
        assert 0 == await worker.terminate()
    advised = await reset(config)

    assert (1, True) == (rejected.code, "stop them first" in rejected.err), rejected.text
    assert "`streams-app groups flush --all --fold folded` emits them while the workers run, `--emit` without them" in advised.out
    assert "10 open groups" in advised.out


@pytest.mark.apache
async def test_groups_that_cannot_be_emitted_are_reported_and_stay(site: Site, redis_client: Any) -> None:
    """Redis has evicted the metadata of a shard, so the definition of its groups is missing."""
    config = await opened(site)
    await redis_client.delete(f"{{{site.names.app_id}/folded/{site.names.topic('events')}/0}}:v2:meta")
    failed = await with_yes(config)
    kept = await reset(config)

    assert (1, True) == (failed.code, "10 open groups and 0 records cannot be emitted" in failed.err), failed.text
    assert "10 open groups" in kept.out


async def test_embedded_broker_receives_the_open_groups_too(site: Site) -> None:
    """Calls the function instead of the command: the embedded broker never removes a departed member from its group."""
    settings = Settings.load(await opened(site), {})
    await delete_topic(site.bootstrap, site.names.topic("events"))
    planned = await plan(settings, "folded")
    counts = [await emit_all(settings, planned), await emit_all(settings, await plan(settings, "folded"))]
    outcome = await site.outcome("folded", ALL)

    assert (True, [GROUPS, 0]) == (planned.is_stranded, counts)
    assert (0, EXPECTED_IDS) == (outcome.redelivered, spans(outcome))


@pytest.mark.parametrize("words", [["--live", "made"], ["--subscriber", "ship", "--at", "latest"]])
def test_emit_option_requires_a_fold(site: Site, words: list[str]) -> None:
    ran = run("reset", *words, "--emit", "--config", str(site.config(site.fold("folded", "events"))))

    assert (1, True) == (ran.code, "--emit requires --fold" in ran.err)
