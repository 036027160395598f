"""Redis behind Sentinel: a promoted replica, a missing quorum, an unknown service name, users with few rights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from streams_app.embedded import Valkey
from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.redis_access.client import RIGHTS, connect, connect_briefly
from streams_app.redis_access.request_limit import MAX_REQUESTS
from streams_app.redis_access.sentinel import SENTINEL_RIGHTS, sentinel_state
from streams_app.settings import RedisSettings
from tests.conftest import REDIS_CHOICE
from tests.helpers.cli.commands import Ran, run
from tests.helpers.live.hubs import running_hub
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, Stage, reasons, unhelpful_lines, up
from tests.helpers.worker.whole_app import GUARANTEES, PAGE, TAB, WholeApp
from tests.helpers.worker.workers import WorkerProcess
from tests.integration.redis_access.test_connections import MANY, OTHER_CONNECTIONS, connections_received, requests
from tests.servers.cache import ROOT
from tests.servers.redis7 import Redis7, fetch
from tests.servers.sentinels import SERVICE, SentinelGroup, run_sentinel, write_sentinel
from tests.servers.tls import Authority

pytestmark = pytest.mark.timeout(300)

KIND = Redis7 if REDIS_CHOICE == "redis" else Valkey
PASSWORD = "s3cret-8"
ADMIN = "admin"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    with SentinelGroup.start(KIND, tmp_path / "group") as running:
        yield running


async def ask(stage: Stage, *words: str, **environment: str) -> Ran:
    """Run a command."""
    config = str(stage.folder / "streams.toml")
    return await asyncio.to_thread(lambda: run(*words, "--config", config, cwd=stage.folder, **environment))


def has_become_replica(port: int) -> bool:
    with redis.Redis(port=port) as client:
        return bool(client.role()[0] == b"slave")


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "told to", "frozen"])
async def test_application_continues_by_itself_after_a_replica_is_promoted(site: Site, group: SentinelGroup, how: str) -> None:
    app = WholeApp(site, group.url)
    await app.prepare()
    former = group.primary
    async with running_hub(app.settings.app_id, group.url, app.settings.live) as hub:
        page = await hub.events(f"/live/{PAGE}/events?view=seen&view=here&tab={TAB}")
        with app.worker() as worker:
            await worker.wait_ready()
            await app.send(20)
            await app.until_all_arrived()
            if how == "killed":
                group.kill_primary()
            elif how == "frozen":
                group.freeze(former)
            else:
                group.promote_one()
            await app.send(20)
            group.wait_promoted(former)
            if how == "frozen":
                group.thaw(former)
            if how != "killed":
                await wait_until(lambda: has_become_replica(former), LIMIT_SECONDS, "the former primary is a replica")
            await app.send(20)
            await app.until_all_arrived()
            await worker.wait_ready()
            await page.until("seen", count=app.sent, state="ok")
            await page.until("here", count=1, state="ok")
            checked = await app.run("check")
            primary = group.wait_promoted(former)  # on a busy machine, another one may have been promoted since
            code = await worker.terminate()
            log = worker.log()

    assert {1} == set(app.calls()[GUARANTEES[-1]].values())
    assert (0, 0) == (code, checked.code), checked.text
    assert f"Sentinel names {LOOPBACK}:{primary} as the primary of '{SERVICE}'" in checked.text, checked.text
    assert [] == unhelpful_lines(log)


async def test_client_behind_sentinel_needs_few_connections(group: SentinelGroup) -> None:
    client = connect(RedisSettings(url=group.url))
    with redis.Redis(port=group.primary) as primary:
        before = connections_received(primary)
        try:
            answers = [await requests(client, has_pipelines=has_pipelines) for has_pipelines in (False, True)]
        finally:
            await client.aclose()
        received = connections_received(primary) - before

    assert [list(range(1, MANY + 1)), list(range(MANY + 1, 2 * MANY + 1))] == [sorted(found) for found in answers]
    assert received <= MAX_REQUESTS + OTHER_CONNECTIONS


@pytest.mark.long
async def test_worker_waits_while_no_quorum_promotes_a_replica(stage: Stage, group: SentinelGroup) -> None:
    stage.redis_url = group.url
    config = stage.config()
    with stage.worker(config) as worker:
        await worker.wait_ready()
        await stage.send(50)
        stopped = list(group.sentinels)[:2]
        for port in stopped:
            group.sentinels.pop(port).kill()
        group.kill_primary()
        await stage.send(50)
        await wait_until(lambda: up(worker)["redis"] == 0, LIMIT_SECONDS, "the worker counts Redis as unavailable")

        async def names_sentinel() -> bool:
            return any("no Sentinel names a primary" in reason for reason in await reasons(worker))

        await wait_until(names_sentinel, LIMIT_SECONDS, "the worker reports that Sentinel names no primary")
        listed, checked = await ask(stage, "groups", "list"), await ask(stage, "check")
        assert worker.exit_code is None
        for port in stopped:
            group.run_sentinel(port)
        outcome = await stage.outcome()
        code = await worker.terminate()

    assert (75, 0) == (listed.code, code)
    assert "NOQUORUM" in listed.text
    assert "NOQUORUM" in checked.text
    assert [] == outcome.faults(stage.sent, is_exact=False)


async def test_unknown_service_ends_worker_and_commands_with_1_and_lists_the_existing_ones(
    stage: Stage, group: SentinelGroup
) -> None:
    stage.redis_url = group.url.replace(f"/{SERVICE}/", "/ordrs/")
    config = stage.config()
    with stage.worker(config) as worker:
        code = await worker.wait_exit(LIMIT_SECONDS)
    listed, checked = await ask(stage, "groups", "list"), await ask(stage, "check")

    assert (1, 1, 1) == (code, listed.code, checked.code)
    for text in (worker.log(), listed.text, checked.text):
        assert f"the Sentinels know no service 'ordrs', did you mean '{SERVICE}'? (they know: {SERVICE})" in text


async def test_unresponsive_sentinels_are_an_outage(stage: Stage) -> None:
    stage.redis_url = f"redis+sentinel://{LOOPBACK}:{free_port()},{LOOPBACK}:{free_port()}/{SERVICE}"
    stage.config()
    listed = await ask(stage, "groups", "list")

    assert 75 == listed.code
    assert f"no Sentinel names a primary of '{SERVICE}'" in listed.text


async def test_check_warns_about_a_sentinel_that_is_down_and_about_a_missing_quorum(stage: Stage, group: SentinelGroup) -> None:
    stage.redis_url = group.url
    stage.config()
    first, second, _ = group.sentinels
    group.sentinels.pop(first).kill()
    one_less = await ask(stage, "check")
    group.sentinels.pop(second).kill()

    async def has_lost_quorum() -> bool:
        return "cannot start a failover: NOQUORUM" in (await ask(stage, "check")).text

    assert 0 == one_less.code
    assert f"Sentinel {LOOPBACK}:{first} does not answer" in one_less.text
    await wait_until(has_lost_quorum, LIMIT_SECONDS, "check reports that no failover is possible")


def test_documented_sentinel_rights_match_the_tested_ones() -> None:
    assert f"{SENTINEL_RIGHTS}\n" in (ROOT / "docs" / "reference" / "servers.md").read_text("utf-8")


async def test_users_of_redis_and_sentinel_have_exactly_the_documented_rights(stage: Stage, tmp_path: Path) -> None:
    lines = [
        f"user {ADMIN} on >{PASSWORD} allchannels ~* +@all",
        f"user service on >{PASSWORD}-sentinel {SENTINEL_RIGHTS}",
        "user default off",
        f"sentinel sentinel-user {ADMIN}",
        f"sentinel sentinel-pass {PASSWORD}",
    ]
    secret, wrong = tmp_path / "sentinel-password", tmp_path / "wrong-password"
    secret.write_text(f"{PASSWORD}-sentinel")
    wrong.write_text(f"{PASSWORD}-wrong")
    right = {"STREAMS_APP_REDIS_SENTINEL_USERNAME": "service", "STREAMS_APP_REDIS_SENTINEL_PASSWORD_FILE": str(secret)}
    with SentinelGroup.start(KIND, tmp_path / "group", sentinel_lines=lines, login=(ADMIN, PASSWORD)) as group:
        for port in group.servers:
            rights = f"~{{{stage.names.app_id}/* {RIGHTS}".split()
            with redis.Redis(port=port) as client:
                client.execute_command("ACL", "SETUSER", "service", "on", f">{PASSWORD}", *rights)
        stage.redis_url = group.url.replace("://", f"://service:{PASSWORD}@")
        stage.config()
        checked = await ask(stage, "check", **right)
        without = await ask(stage, "check")
        rejected = await ask(stage, "check", **right | {"STREAMS_APP_REDIS_SENTINEL_PASSWORD_FILE": str(wrong)})
        with WorkerProcess(stage.config(), stage.folder, right) as worker:
            await worker.wait_ready()
            await stage.send(50)
            former = group.kill_primary()
            group.wait_promoted(former)
            await stage.send(50)
            outcome = await stage.outcome()
            code = await worker.terminate()

    assert (0, 1, 1, 0) == (checked.code, without.code, rejected.code, code), checked.text
    assert f"Sentinel names {LOOPBACK}:{former}" in checked.text
    for text in (without.text, rejected.text):
        assert "redis.sentinel_password_file; the rights needed are" in text
    assert all(PASSWORD not in text for text in (checked.text, without.text, rejected.text, worker.log()))
    assert [] == outcome.faults(stage.sent, is_exact=False)


async def test_newest_configuration_wins_if_an_isolated_sentinel_names_the_former_primary(tmp_path: Path) -> None:
    children: list[Child] = []
    ports = [free_port() for _ in range(3)]
    with KIND.start() as former, KIND.start() as primary:
        try:
            for number, port in enumerate(ports):
                place, epoch = tmp_path / f"sentinel-{number}", int(number > 0)
                named = (primary if epoch else former).port
                write_sentinel(place, port, named, [f"sentinel config-epoch {SERVICE} {epoch}", f"sentinel current-epoch {epoch}"])
                children.append(run_sentinel(KIND, place, port))
            hosts = ",".join(f"{LOOPBACK}:{port}" for port in ports)
            client = connect_briefly(RedisSettings(url=f"redis+sentinel://{hosts}/{SERVICE}"))
            try:
                state = await sentinel_state(client)
            finally:
                await client.aclose()
        finally:
            for child in children:
                child.kill()

    assert state is not None
    assert f"{LOOPBACK}:{primary.port}" == state.primary


async def test_client_abandons_a_former_primary_that_still_accepts_writes(group: SentinelGroup) -> None:
    client = connect(RedisSettings(url=group.url))
    former = group.primary
    try:
        await client.set("writes", 0)
        group.promote_one()
        promoted = await asyncio.to_thread(group.wait_promoted, former)

        async def writes_go_to_promoted() -> bool:
            await client.incr("writes")
            with redis.Redis(port=former) as old, redis.Redis(port=promoted) as new:
                assert old.role()[0] == b"master"  # the client was the reason
                return int(new.get("writes") or 0) > 0

        await wait_until(writes_go_to_promoted, LIMIT_SECONDS, "the client writes to the new primary")
    finally:
        await client.aclose()


@pytest.mark.redis7
@pytest.mark.parametrize("scheme", ["rediss+sentinel", "redis+sentinel"])
async def test_sentinel_and_redis_are_reached_with_tls(stage: Stage, tmp_path: Path, scheme: str) -> None:
    authority = Authority.make(tmp_path / "authority")
    signed = authority.sign("redis")
    files = {"tls-cert-file": signed.certificate, "tls-key-file": signed.key, "tls-ca-cert-file": authority.certificate}
    lines = [f"{name} {path}" for name, path in files.items()] + ["tls-auth-clients no", "tls-replication yes"]
    port, primary = free_port(), free_port()
    options = [part for line in lines for part in f"--{line}".split()]
    child = Child(
        "redis", [str(fetch()), "--port", "0", "--tls-port", str(primary), "--bind", LOOPBACK, *options], tmp_path / "redis"
    )
    place = tmp_path / "sentinel"
    write_sentinel(place, 0, primary, [f"tls-port {port}", *lines])
    sentinel = run_sentinel(Redis7, place, port)
    try:
        stage.redis_url = f"{scheme}://{LOOPBACK}:{port}/{SERVICE}"
        stage.config()
        trusted = {"STREAMS_APP_REDIS_SSL_CAFILE": str(authority.certificate)} if scheme.startswith("rediss") else {}
        checked = await ask(stage, "check", **trusted)
        listed = await ask(stage, "groups", "list", **trusted)
    finally:
        sentinel.kill()
        child.kill()

    if trusted:
        assert (0, 0) == (checked.code, listed.code), checked.text + listed.text
        assert f"Sentinel names {LOOPBACK}:{primary}" in checked.text
    else:
        assert (1, 1) == (checked.code, listed.code), checked.text
        assert "the server speaks TLS there: redis.url begins with redis+sentinel://" in listed.text
