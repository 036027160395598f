"""Denied access to the database of a read store, or a missing right there: commands and a starting worker end with 1."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from streams_app.embedded.ports import LOOPBACK, free_port
from tests.helpers.cli.commands import Ran, run
from tests.helpers.read_store.searching import Search
from tests.helpers.read_store.stores import Postgres
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.opensearch import OpenSearch
from tests.servers.postgresql import PostgreSQL

pytestmark = pytest.mark.timeout(300)

PASSWORD, WRONG = "s3cret-7", "s3cret-8"
SQL = "SELECT account, metric, value FROM numbers WHERE account = ANY(:groups) AND metric = ANY(:names)"
GRANTS = "GRANT SELECT, INSERT, UPDATE ON folded_values, folded_values_progress TO service"
COMMANDS = {
    "fill": ("read-store", "fill", "groups.jsonl"), "verify": ("read-store", "verify"), "rebuild": ("read-store", "rebuild"),
    "reset": ("reset", "--fold", "folded", "--yes"), "replay": ("dead-letters", "replay", "--store", "store"),
}  # fmt: skip
OF_SOURCE = frozenset({"fill"})
"""Commands that query the source of an empty store before they need further rights."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of access, and its message.

    Attributes:
        given: Settings of the store that differ from correct ones.
        sql: Statement that a user with all rights executes before.
        texts: Parts of the message.
        commands: Commands that fail, beside the worker.
    """

    texts: tuple[str, ...]
    given: tuple[tuple[str, str], ...] = ()
    sql: str = "SELECT 1"
    commands: frozenset[str] = frozenset(COMMANDS)


ONE = frozenset({"verify"})
LETS_IN = ("check the user in read_stores.store.url and the password in read_stores.store.password_file",)
LETS_IN_SOURCE = ("check the user in read_stores.store.source_url and the password in read_stores.store.source_password_file",)
FAULTS = {
    "password": Fault(("password authentication failed", *LETS_IN), (("password_file", WRONG),)),
    "user": Fault(("nobody", *LETS_IN), (("url", "postgresql://nobody@HOST/postgres"),), commands=ONE),
    "database": Fault(
        ('database "absent" does not exist', "name a database that exists in read_stores.store.url"),
        (("url", "postgresql://service@HOST/absent"),),
        commands=ONE,
    ),
    "rights": Fault(
        ("permission denied for ", GRANTS),
        sql="REVOKE ALL ON folded_values, folded_values_progress FROM service",
    ),
    "source password": Fault(
        ("password authentication failed", *LETS_IN_SOURCE), (("source_password_file", WRONG),), commands=OF_SOURCE
    ),
    "source database": Fault(
        ("name a database that exists in read_stores.store.source_url",),
        (("source_url", "postgresql://service@HOST/absent"),),
        commands=OF_SOURCE,
    ),
    "source rights": Fault(
        ("permission denied for table numbers", "GRANT SELECT", "read_stores.store.sql"),
        sql="REVOKE SELECT ON numbers FROM service",
        commands=OF_SOURCE,
    ),
}


@dataclass
class SecuredApp:
    """An application whose read store and source are in a database that requires a password."""

    site: Site
    url: str

    async def do(self, sql: str) -> None:
        """Execute a statement with all rights."""
        await Postgres(self.url).run(sql)

    def config(self, given: dict[str, str], name: str = "streams.toml") -> Path:
        host = self.url.partition("@")[2].partition("/")[0]
        url = f"postgresql://service@{host}/postgres"
        stated = {
            "url": url, "password_file": PASSWORD, "source_url": url, "source_password_file": PASSWORD,
            "source": "sql", "sql": SQL, "dead_letters": self.site.names.topic("dead"), **given,
        }  # fmt: skip
        for key in ("password_file", "source_password_file"):
            file = self.site.folder / f"{key}-{stated[key]}"
            file.write_text(stated[key])
            stated[key] = str(file)
        lines = [f"{key} = {json.dumps(value.replace('HOST', host))}" for key, value in stated.items()]
        store = '[read_stores.store]\nfolds = ["folded"]\n' + "\n".join(lines)
        return self.site.config(self.site.fold("folded", "events") + store, name)

    async def announce(self, version: int) -> None:
        """Send a folded record."""
        record = {"account_id": "a", "metrics": ["likes"], "fold": {"name": "folded", "version": version}}
        await self.site.send("folded", [(b"a", json.dumps(record).encode())])

    async def run(self, config: Path, *words: str) -> Ran:
        return await asyncio.to_thread(lambda: run(*words, "--config", str(config), cwd=self.site.folder))


@pytest.fixture
async def secured_app(site: Site) -> AsyncIterator[SecuredApp]:
    """Return an application with everything that a worker needs, including its rights."""
    with PostgreSQL.start() as first:
        made = SecuredApp(site, first.url)
        await made.do(f"CREATE ROLE service LOGIN PASSWORD '{PASSWORD}'")
        await made.do("CREATE TABLE numbers (account text, metric text, value bigint)")
        await made.do("INSERT INTO numbers VALUES ('a', 'likes', 7)")
        await made.do("GRANT SELECT ON numbers TO service")
        rules = first.directory / "rules"
        rules.write_text("host all app 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n", "utf-8")
        rules.chmod(0o644)
        await made.do(f"ALTER SYSTEM SET hba_file = '{rules}'")
        first.kill()
        with await asyncio.to_thread(first.restart):
            (site.folder / "groups.jsonl").write_text('{"account_id": "a", "metrics": ["likes"]}\n')
            prepared = [
                await made.run(made.config({}), "topics", "create"),
                await made.run(made.config({"url": first.url}, "owner.toml"), "read-store", "init"),
            ]
            assert [0, 0] == [ran.code for ran in prepared], prepared
            await made.do(GRANTS)
            await made.announce(1)
            yield made


OFTEN = {"password", "rights"}
"""Faults that `make test` shows."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.long) for name in FAULTS])
async def test_wrong_password_and_missing_right_end_worker_and_commands_with_1_and_an_instruction(
    secured_app: SecuredApp, name: str
) -> None:
    fault = FAULTS[name]
    await secured_app.do(fault.sql)
    config = secured_app.config(dict(fault.given))
    ran = {one: await secured_app.run(config, *words) for one, words in COMMANDS.items() if one in fault.commands}
    with (
        WorkerProcess(config, secured_app.site.folder) as folding,
        WorkerProcess(config, secured_app.site.folder, None, ("--only", "store")) as apart,
    ):
        codes = await folding.wait_exit(LIMIT_SECONDS), await apart.wait_exit(LIMIT_SECONDS)
    outputs = {one: done.text for one, done in ran.items()} | {"worker": folding.log(), "apart": apart.log()}

    assert dict.fromkeys(ran, 1) == {one: done.code for one, done in ran.items()}, ran
    assert (1, 1) == codes, outputs
    assert [] == [(one, text) for one, log in outputs.items() for text in fault.texts if text not in log]
    assert [] == [one for one, log in outputs.items() if PASSWORD in log.replace(f"file-{PASSWORD}", "") or "not answer" in log]


async def test_init_without_the_right_to_create_ends_with_1_and_names_the_grant(secured_app: SecuredApp) -> None:
    ran = await secured_app.run(secured_app.config({"table": "another"}), "read-store", "init")
    wrong = await secured_app.run(secured_app.config({"password_file": WRONG}), "read-store", "init")

    assert (1, 1) == (ran.code, wrong.code)
    assert "permission denied for schema public" in ran.err
    assert "CREATE on the schema" in ran.err
    assert LETS_IN[0] in wrong.err


async def test_right_revoked_from_a_running_worker_is_awaited(secured_app: SecuredApp) -> None:
    config = secured_app.config({})
    with WorkerProcess(config, secured_app.site.folder) as worker:
        await worker.wait_ready()
        await wait_until(lambda: stored(secured_app, 7), LIMIT_SECONDS, "the record is in the store")
        await secured_app.do("REVOKE ALL ON folded_values, folded_values_progress FROM service")
        await secured_app.do("UPDATE numbers SET value = 8")
        await secured_app.announce(2)
        await wait_until(lambda: GRANTS in worker.log(), LIMIT_SECONDS, "it reports what is missing")
        exit_code = worker.exit_code
        await secured_app.do(GRANTS)
        await wait_until(lambda: stored(secured_app, 8), LIMIT_SECONDS, "it continues")
        code = await worker.terminate()

    assert (None, 0) == (exit_code, code)


async def stored(secured_app: SecuredApp, value: int) -> bool:
    return [(str(value),)] == await Postgres(secured_app.url).run("SELECT value::text FROM folded_values")


async def test_worker_starts_if_a_store_is_unavailable_or_has_no_tables(secured_app: SecuredApp) -> None:
    for given in ({"url": f"postgresql://service@{LOOPBACK}:{free_port()}/postgres"}, {"table": "another"}):
        with WorkerProcess(secured_app.config(given), secured_app.site.folder) as worker:
            await worker.wait_ready()
            code = await worker.terminate()

        assert 0 == code


# OpenSearch


@asynccontextmanager
async def rejecting_proxy(port: int, allowed: str, body: dict[str, Any] | None) -> AsyncIterator[int]:
    """Yield a proxy of OpenSearch, whose jars of the tests have no security plugin; it answers as that plugin does.

    Args:
        port: The port of the server.
        allowed: The password of ``service``; any other is answered with 401.
        body: The answer with 403 for a user without a right; None: every request is allowed.
    """
    expected = f"Basic {base64.b64encode(f'service:{allowed}'.encode()).decode()}"
    async with aiohttp.ClientSession(f"http://{LOOPBACK}:{port}") as client:

        async def serve(request: web.BaseRequest) -> web.Response:
            if request.headers.get("Authorization") != expected:
                return web.Response(status=401, text="Unauthorized")
            if body is not None:
                return web.json_response(body, status=403)
            content = {"Content-Type": request.headers.get("Content-Type", "application/json")}
            async with client.request(request.method, request.rel_url, data=await request.read(), headers=content) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

        runner = web.ServerRunner(web.Server(serve))
        await runner.setup()
        await web.TCPSite(runner, LOOPBACK, 0).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


def denied(kind: str, reason: str) -> dict[str, Any]:
    return {"error": {"root_cause": [], "type": kind, "reason": reason}, "status": 403}


LACKS = "no permissions for [indices:data/read/search] and User [name=service]"
SEARCH_FAULTS = {
    "password": (WRONG, None, ("Unauthorized", *LETS_IN)),
    "rights": (PASSWORD, denied("security_exception", LACKS), (LACKS, "grant it to the user in read_stores.store.url")),
}


@pytest.mark.parametrize("name", SEARCH_FAULTS)
async def test_opensearch_that_denies_its_user_ends_worker_and_commands_with_1(
    site: Site, opensearch: OpenSearch, name: str
) -> None:
    given, body, texts = SEARCH_FAULTS[name]
    async with rejecting_proxy(opensearch.port, PASSWORD, body) as port:
        config = search_config(site, f"opensearch+http://service@{LOOPBACK}:{port}", given)
        await asyncio.to_thread(run, "topics", "create", "--config", str(config))
        commands = {"init": ("read-store", "init"), **COMMANDS}
        (site.folder / "groups.jsonl").write_text('{"account_id": "a", "metrics": ["likes"]}\n')
        ran = {
            one: await asyncio.to_thread(partial(run, *words, "--config", str(config), cwd=site.folder))
            for one, words in commands.items()
        }
        with WorkerProcess(config, site.folder) as folding:
            code = await folding.wait_exit(LIMIT_SECONDS)
    outputs = {one: done.text for one, done in ran.items()} | {"worker": folding.log()}

    assert dict.fromkeys(ran, 1) == {one: done.code for one, done in ran.items()}, ran
    assert 1 == code
    assert [] == [(one, text) for one, log in outputs.items() for text in texts if text not in log]


async def test_opensearch_with_a_blocked_index_is_awaited(site: Site, opensearch: OpenSearch) -> None:
    """With nearly full disks it also answers 403, and lifts the block by itself."""
    blocked = denied("cluster_block_exception", "index [t] blocked by: [FORBIDDEN/5/index read-only (api)]")
    async with rejecting_proxy(opensearch.port, PASSWORD, blocked) as port:
        search = Search(port, "t", "cells", url=f"opensearch+http://service:{PASSWORD}@{LOOPBACK}:{port}")
        with pytest.raises(Exception, match="blocked by") as caught:
            await search.store.checkpoints()
        await search.store.close()

    assert 75 == getattr(caught.value, "exit_code", None)


def search_config(site: Site, url: str, password: str) -> Path:
    file = site.folder / "password"
    file.write_text(password)
    (site.folder / "write.db").touch()
    return site.config(
        site.fold("folded", "events") + f'[read_stores.store]\nurl = "{url}"\npassword_file = "{file}"\nfolds = ["folded"]\n'
        f'source = "sql"\nsource_url = "sqlite:///{site.folder}/write.db"\nsql = "SELECT 1, 2, 3 WHERE 0"\n'
        f'dead_letters = "{site.names.topic("dead")}"\n'
    )
