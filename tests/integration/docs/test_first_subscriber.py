"""The first program of docs/reference/subscribers.md, run by a reader who has read no further."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tomllib

import pytest

from tests.checkout.pages import ROOT, fenced
from tests.helpers.cli.commands import run
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, with_topics
from tests.helpers.worker.workers import WorkerProcess

pytestmark = pytest.mark.timeout(200)

PAGE = ROOT / "docs" / "reference" / "subscribers.md"


async def test_first_program_publishes_an_event_that_its_worker_handles(site: Site) -> None:
    program, settings = fenced(PAGE, "python")[0], fenced(PAGE, "toml")[0]
    (site.folder / "shop.py").write_text(with_topics(program, OrderPaid=site.names.topic("paid")))
    printed_settings = tomllib.loads(settings)
    for shown, here in [
        (printed_settings["app_id"], site.names.app_id),
        (printed_settings["kafka"]["bootstrap_servers"], site.bootstrap),
        (printed_settings["redis"]["url"], site.redis_url),
    ]:
        settings = settings.replace(f'= "{shown}"', f'= "{here}"')
    config = site.folder / "streams.toml"
    config.write_text(settings)
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site.folder)])}

    def publish() -> str:
        command = [sys.executable, "shop.py", "o1"]
        return subprocess.run(
            command, cwd=site.folder, env=os.environ | environment, check=True, capture_output=True, text=True
        ).stdout

    created = await asyncio.to_thread(run, "topics", "create", cwd=site.folder)
    with WorkerProcess(config, site.folder, {**environment, "STREAMS_APP_HTTP_PORT": "0"}) as worker:
        event_id = await asyncio.to_thread(publish)
        await wait_until(lambda: "the parcel of o1 is on its way" in worker.log(), LIMIT_SECONDS, "the function is called")

    assert 0 == created.code
    assert re.fullmatch(r"[0-9a-f-]{36}\n", event_id)
