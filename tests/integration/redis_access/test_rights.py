"""A user of Redis with exactly the documented rights, and with fewer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from streams_app.embedded import Valkey
from streams_app.redis_access.client import CLUSTER_RIGHTS, RIGHTS
from tests.conftest import REDIS_CHOICE
from tests.helpers.live.hubs import running_hub
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.helpers.worker.whole_app import PAGE, TAB, WholeApp
from tests.servers.cache import ROOT
from tests.servers.redis7 import Redis7
from tests.servers.redis_cluster import ReplicatedCluster

pytestmark = pytest.mark.timeout(240)

PASSWORD = "s3cret-7"
FEWER = {
    "no write": "~{APP_ID/* %s -@write",
    "no scripts": "~{APP_ID/* %s -@scripting",
    "keys without the brace": "~APP_ID/* %s",
}


@pytest.fixture
def server() -> Iterator[redis.Redis]:
    """Yield a client with all rights on a server of its own."""
    kind = Redis7 if REDIS_CHOICE == "redis" else Valkey
    with kind.start() as running, redis.Redis(port=running.port) as client:
        yield client


def grant(server: redis.Redis, app_id: str, rules: str, password: str = PASSWORD) -> None:
    words = rules.replace("APP_ID", app_id).split()
    server.execute_command("ACL", "SETUSER", "service", "reset", "on", f">{password}", *words)  # type: ignore[no-untyped-call]  # redis-py gives it no types


def app_of(site: Site, server: redis.Redis) -> WholeApp:
    port = server.connection_pool.connection_kwargs["port"]
    return WholeApp(site, f"redis://service:{PASSWORD}@127.0.0.1:{port}/0")


def test_documented_rights_match_the_tested_ones() -> None:
    text = (ROOT / "docs" / "reference" / "servers.md").read_text("utf-8")

    assert f"~{{APP_ID/* {RIGHTS}" in text
    assert f"`{CLUSTER_RIGHTS}`" in text


@pytest.mark.apache  # the embedded broker counts a worker that has ended as a member for minutes, and no fold is reset then
@pytest.mark.parametrize("more", ["", pytest.param("-info", marks=pytest.mark.long)])
async def test_application_runs_with_the_documented_rights(site: Site, server: redis.Redis, more: str) -> None:
    app = app_of(site, server)
    grant(server, app.settings.app_id, f"~{{APP_ID/* {RIGHTS} {more}")
    await app.prepare()
    async with running_hub(app.settings.app_id, app.redis_url, app.settings.live) as hub:
        page = await hub.events(f"/live/{PAGE}/events?view=seen&view=here&tab={TAB}")
        with app.worker() as worker:
            await worker.wait_ready()
            await app.send(10)
            await app.until_all_arrived()
            await page.until("seen", count=10, state="ok")
            await page.until("here", count=1, state="ok")
            checked = await app.run("check")
            commands = [("groups", "list"), ("groups", "flush", "--all"), ("live", "show", PAGE), ("dead-letters", "list")]
            codes = {" ".join(words): (await app.run(*words)).code for words in commands}
            code = await worker.terminate()
    resets = [("reset", *words, "--yes") for words in (("--fold", "folded"), ("--live", "seen"), ("--journal", "kept"))]
    codes |= {" ".join(words): (await app.run(*words)).code for words in resets}

    assert [] == [line for line in checked.text.splitlines() if line.startswith("error") and "Redis" in line]
    assert {0} == {*codes.values(), code}, codes
    assert ("grant its user +info" in checked.text) == bool(more)
    assert "NOPERM" not in worker.log()
    assert [] == server.acl_log() or bool(more), server.acl_log()


@pytest.mark.parametrize("fewer", ["no write", *(pytest.param(name, marks=pytest.mark.long) for name in list(FEWER)[1:])])
async def test_missing_right_ends_worker_and_commands_with_1_and_is_named(site: Site, server: redis.Redis, fewer: str) -> None:
    app = app_of(site, server)
    grant(server, app.settings.app_id, f"~{{APP_ID/* {RIGHTS}")
    await app.prepare()
    grant(server, app.settings.app_id, FEWER[fewer] % RIGHTS)
    with app.worker() as folding, app.worker("--only", "unknown") as apart:
        codes = await folding.wait_exit(LIMIT_SECONDS), await apart.wait_exit(LIMIT_SECONDS)
    checked, served = await app.run("check"), await app.run("live", "serve")

    assert (1, 1, 1, 1) == (*codes, checked.code, served.code)
    for text in (folding.log(), apart.log(), checked.text, served.text):
        assert "user 'service' lacks a right (NOPERM)" in text
        assert f"~{{APP_ID/* {RIGHTS}" in text
        assert PASSWORD not in text


async def test_wrong_password_ends_worker_and_commands_with_1(site: Site, server: redis.Redis) -> None:
    app = app_of(site, server)
    grant(server, app.settings.app_id, f"~{{APP_ID/* {RIGHTS}")
    await app.prepare()
    grant(server, app.settings.app_id, f"~{{APP_ID/* {RIGHTS}", password="another")
    with app.worker() as folding, app.worker("--only", "unknown") as apart:
        codes = [await folding.wait_exit(LIMIT_SECONDS), await apart.wait_exit(LIMIT_SECONDS)]
    commands = [
        ("check",), ("groups", "list"), ("groups", "flush", "--all"), ("live", "show", PAGE), ("live", "serve"),
        ("reset", "--fold", "folded", "--yes"), ("reset", "--live", "seen", "--yes"), ("reset", "--journal", "kept", "--yes"),
    ]  # fmt: skip
    ran = {" ".join(words): await app.run(*words) for words in commands}

    assert [1, 1] == codes
    assert dict.fromkeys(ran, 1) == {words: one.code for words, one in ran.items()}
    assert [] == [words for words, one in ran.items() if "password was rejected" not in one.text]


@pytest.mark.parametrize("missing", ["", *(pytest.param(name, marks=pytest.mark.long) for name in ("cluster|slots", "scripting"))])
async def test_cluster_application_runs_with_the_documented_rights_and_a_missing_one_ends_it_with_1(
    site: Site, tmp_path: Path, missing: str
) -> None:
    with ReplicatedCluster.start(Redis7 if REDIS_CHOICE == "redis" else Valkey, tmp_path / "cluster") as cluster:
        app = WholeApp(site, cluster.url.replace("://", f"://service:{PASSWORD}@"))
        rules = f"~{{APP_ID/* {RIGHTS} {CLUSTER_RIGHTS}"
        for port in cluster.servers:
            with redis.Redis(port=port) as client:
                grant(client, app.settings.app_id, rules)
        await app.prepare()
        if missing:
            fewer = f"{rules} -@{missing}" if missing == "scripting" else rules.replace(f" +{missing}", "")
            for port in cluster.servers:
                with redis.Redis(port=port) as client:
                    grant(client, app.settings.app_id, fewer)
            with app.worker() as worker:
                code = await worker.wait_exit(LIMIT_SECONDS)
            checked = await app.run("check")
        else:
            with app.worker() as worker:
                await worker.wait_ready()
                await app.send(10)
                await app.until_all_arrived()
                checked = await app.run("check")
                code = await worker.terminate()
        log = worker.log()

    if missing:
        assert (1, 1) == (code, checked.code), log + checked.text
        for text in (log, checked.text):
            assert "user 'service' lacks a right (NOPERM)" in text
            assert f"~{{APP_ID/* {RIGHTS} {CLUSTER_RIGHTS}" in text
            assert PASSWORD not in text
    else:
        assert 0 == code
        assert "NOPERM" not in log + checked.text
