"""The secrets of a worker are in no output, and its pages are not public."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from streams_app.embedded import Valkey
from streams_app.embedded.ports import LOOPBACK
from streams_app.settings import Settings
from tests.helpers.canaries import CANARIES, debug, secret, secrets_in
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Stage
from tests.helpers.worker.workers import WorkerProcess


@pytest.mark.long
@pytest.mark.parametrize("where", ["file", "url"])
async def test_secrets_stay_hidden_in_a_redis_crash_and_a_resync(stage: Stage, tmp_path: Path, where: str) -> None:
    home = tmp_path / "valkey"
    password = CANARIES["redis" if where == "file" else "redis-url"]
    variables = {"STREAMS_APP_HTTP_TOKEN_FILE": secret(tmp_path, "http")}
    with valkey_with_password(None, home, password) as first:
        stage.redis_url = first.url if where == "file" else first.url.replace("//", f"//default:{password}@")
        if where == "file":
            variables["STREAMS_APP_REDIS_PASSWORD_FILE"] = secret(tmp_path, "redis")
        config = stage.config(quiet_period="3s")
        with debug(stage, variables) as worker:
            await worker.wait_ready()
            await stage.send(60)
            await wait_until(lambda: "open_groups" in page(worker, "/metrics")[1], LIMIT_SECONDS, "metrics")
            await wait_until(lambda: len(open_groups(worker)) > 0, LIMIT_SECONDS, "groups are open")
            first.kill()
            await stage.send(60)
            await wait_until(lambda: page(worker, "/health/ready")[0] == 503, LIMIT_SECONDS, "the worker misses Redis")
            pages = [page(worker, path)[1] for path in ("/metrics", "/groups", "/health/live", "/health/ready")]
            with valkey_with_password(first.port, home, password):
                await stage.send(60)
                outcome = await stage.outcome()
                pages += [page(worker, path)[1] for path in ("/metrics", "/groups", "/health/live", "/health/ready")]
                code = await worker.terminate()
    log = worker.log()

    assert [] == outcome.faults(stage.sent, is_exact=False)
    assert "claiming again: " in log
    assert " DEBUG " in log
    assert 0 == code
    assert [] == secrets_in(log + "".join(pages))
    settings = Settings.load(config, variables)
    assert [] == secrets_in(f"{settings!r} {settings} {settings.redis!r} {settings.redis.redacted_url}")


def valkey_with_password(port: int | None, home: Path, password: str) -> Valkey:
    """Yield an empty Valkey that requires a password."""
    valkey = Valkey.start(port, home)
    with redis.Redis.from_url(valkey.url) as client:
        client.config_set("requirepass", password)
    return valkey


def page(worker: WorkerProcess, path: str, token: str | None = CANARIES["http"]) -> tuple[int, str]:
    request = urllib.request.Request(f"{worker.url}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def open_groups(worker: WorkerProcess) -> list[Any]:
    found: list[Any] = json.loads(page(worker, "/groups")[1]).get("groups", [])
    return found


def test_printed_settings_contain_no_secret(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "app_id": "a",
            "folds": [{"name": "f", "source": "s", "group_key": "g", "changed": "c", "quiet_period": "1s"}],
            "kafka": {"sasl_username": "u", "sasl_password_file": secret(tmp_path, "kafka")},
            "redis": {"url": f"redis://u:{CANARIES['redis-url']}@localhost/0", "password_file": secret(tmp_path, "redis")},
            "http": {"token_file": secret(tmp_path, "http")},
            "read_stores": [
                {
                    "name": "dashboard",
                    "url": f"postgresql://u:{CANARIES['read-url']}@localhost/r",
                    "folds": ["f"],
                    "source_url": f"postgresql://u:{CANARIES['source-url']}@localhost/w",
                    "sql": "SELECT 1",
                }
            ],
        }
    )
    parts = [settings, settings.kafka, settings.redis, settings.http, settings.read_stores[0]]

    assert [] == secrets_in(" ".join(f"{part!r} {part}" for part in parts))
    # The secrets are there all the same.
    used = f"{settings.kafka.sasl_password} {settings.redis.password} {settings.http.token} {settings.redis.url}"
    assert {CANARIES[kind] for kind in ("kafka", "redis", "http", "redis-url")} == set(secrets_in(used))


# HTTP


def outer_address() -> str:
    """Return an address of this machine that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = str(probe.getsockname()[0])
    if address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    return address


@pytest.mark.parametrize(("host", "is_open"), [(None, False), ("0.0.0.0", True)], ids=["by default", "on all addresses"])
async def test_pages_are_open_to_this_machine_only(stage: Stage, host: str | None, is_open: bool) -> None:
    address = outer_address()
    with debug(stage, {"STREAMS_APP_HTTP_HOST": host} if host else {}) as worker:
        url = await wait_until(lambda: worker.url, LIMIT_SECONDS, "it listens")
        with socket.socket() as client:
            client.settimeout(5)
            error_number = client.connect_ex((address, urlsplit(url).port or 0))

    assert (host or LOOPBACK) == urlsplit(url).hostname
    assert is_open == (error_number == 0)


async def test_token_is_required_for_all_but_the_health_pages(stage: Stage, tmp_path: Path) -> None:
    with debug(stage, {"STREAMS_APP_HTTP_TOKEN_FILE": secret(tmp_path, "http")}) as worker:
        await worker.wait_ready()
        tokens = [CANARIES["http"], None, "", CANARIES["wrong"], CANARIES["http"][:-1], f"{CANARIES['http']}x"]
        found = {path: [page(worker, path, token)[0] for token in tokens] for path in ("/metrics", "/groups", "/health/live")}

    assert {"/metrics": [200] + [401] * 5, "/groups": [200] + [401] * 5, "/health/live": [200] * 6} == found
