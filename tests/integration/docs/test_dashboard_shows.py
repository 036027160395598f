"""The dashboard on a real Prometheus that scrapes a real worker and hub: no panel of a healthy system is empty."""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.parse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from streams_app.subscribers.execution.status import WAITS
from tests.helpers.cli.commands import run
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ROOT
from tests.servers.prometheus import Prometheus

pytestmark = [pytest.mark.timeout(200), pytest.mark.usefixtures("promtool")]

CATALOGUE = """
import os
import msgspec
from streams_app import Catalogue, Event, Received, records_of, subscriber

class AccountChanged(msgspec.Struct):
    account_id: str

shown = Event("account.shown", AccountChanged, description="Shown.", keyed_by="account_id", topic=os.environ["SHOWN"])

@subscriber(records_of("folded", AccountChanged), idempotent="yes", description="Shows it.")
async def show(event: Received[AccountChanged]) -> None:
    await event.publish(shown, event.data)

catalogue = Catalogue(events=(shown,), subscribers=(show,))
"""
PANELS = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text("utf-8"))["panels"]
EXPRESSIONS = {
    f"{panel['title']} {target['refId']}": re.sub(r"\$(subscriber|fold)", ".*", target["expr"]).replace("$__rate_interval", "20s")
    for panel in PANELS
    for target in panel.get("targets", [])
}

LIVE = """
[live_server]
port = 0
[live.visitors]
kind = "presence"
expiry = "60s"
public = true
[live.accounts]
kind = "count"
source = "{source}"
page = "account_id"
expiry = "1h"
public = true
[journals.accounts]
source = "{source}"
key = "account_id"
"""


class HubProcess(WorkerProcess):
    """``live serve`` instead of a worker."""

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "streams_app", "live", "serve", "--config", str(config), *arguments]


async def test_every_dashboard_panel_shows_data_of_a_worker_and_a_hub(site: Site) -> None:
    (site.folder / "its_events.py").write_text(CATALOGUE)
    store = f'[read_stores.read]\nurl = "sqlite:///{site.folder}/read.db"\nfolds = ["folded"]\nsource = "carried"\n'
    live = LIVE.format(source=site.names.topic("events"))
    config = site.config(
        site.fold("folded", "events", keep="last") + store + '[events]\ncatalogue = "its_events:catalogue"\n' + live
    )
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site.folder)]), "SHOWN": site.names.topic("shown")}
    created = run("topics", "create", "--config", str(config), cwd=None, **environment)
    initialized = run("read-store", "init", "--config", str(config), cwd=None, **environment)
    with WorkerProcess(config, site.folder, environment) as worker, HubProcess(config, site.folder, environment) as hub:
        await worker.wait_ready()
        await hub.wait_ready()
        addresses = [urllib.parse.urlsplit(process.url or "").netloc for process in (worker, hub)]
        with Prometheus.start(addresses[0], others=addresses[1:]) as prometheus:
            await site.send("events", [(b"a1", b'{"account_id": "a1", "metrics": {"likes": 3}}')])

            for name, expression in EXPRESSIONS.items():
                await wait_until(partial(prometheus.values, expression), LIMIT_SECONDS, f"{name!r} shows something")
            shown = {name: prometheus.values(expression) for name, expression in EXPRESSIONS.items()}

    assert (0, 0) == (created.code, initialized.code)
    assert [1.0, 1.0, 1.0] == shown["Servers A"]
    assert [0.0] * len(WAITS) == shown["Redis is full A"]
