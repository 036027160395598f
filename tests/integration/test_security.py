"""Passwords, TLS and tokens: they are needed, they work, and nobody ever reads them in what a worker says."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from aiokafka.errors import KafkaConnectionError

from streams_app.embedded import Valkey
from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.kafka.diagnosis import why_unreachable
from streams_app.settings import KafkaSettings, Settings
from tests.conftest import _unavailable
from tests.helpers import WorkerProcess, create_topics, produce, wait_until
from tests.integration.site import LIMIT_SECONDS, Stage
from tests.servers import redis7
from tests.servers.cache import ServerUnavailableError
from tests.servers.secured_kafka import ADMIN, SecuredKafka
from tests.servers.tls import Authority

CANARIES = {
    kind: f"canary-{kind}-5d81c0" for kind in ("kafka", "redis", "http", "redis-url", "read-url", "source-url", "broker", "wrong")
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    try:
        return Authority.make(tmp_path_factory.mktemp("tls") / "ours")
    except ServerUnavailableError as error:
        _unavailable(error)


@pytest.fixture(scope="module")
def stranger(authority: Authority) -> Authority:
    """Has signed nothing that is used here."""
    return Authority.make(authority.folder.parent / "another")


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[SecuredKafka]:
    try:
        running = SecuredKafka.start(authority, {ADMIN: CANARIES["broker"], "worker": CANARIES["kafka"]})
    except ServerUnavailableError as error:
        _unavailable(error)
    with running:
        yield running


def secret(folder: Path, kind: str) -> str:
    """A file with a secret in it."""
    path = folder / f"{kind}.secret"
    path.write_text(f"{CANARIES[kind]}\n", "utf-8")
    return str(path)


def told(text: str) -> list[str]:
    """Secrets that are in a text."""
    return [canary for canary in CANARIES.values() if canary in text]


def kafka_variables(secured: SecuredKafka, authority: Authority, folder: Path, password: str = "kafka") -> dict[str, str]:
    return {
        "STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS": secured.secured_servers,
        "STREAMS_APP_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "STREAMS_APP_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "STREAMS_APP_KAFKA_SASL_USERNAME": "worker",
        "STREAMS_APP_KAFKA_SASL_PASSWORD_FILE": secret(folder, password),
        "STREAMS_APP_KAFKA_SSL_CAFILE": str(authority.certificate),
    }


def debug(stage: Stage, variables: Mapping[str, str]) -> WorkerProcess:
    return WorkerProcess(stage.folder / "streams.toml", stage.folder, variables, ["--log-level", "debug"])


def ended(log: str) -> str:
    """What the worker said last: the message for whoever started it."""
    return next(line for line in reversed(log.splitlines()) if line.startswith("error: "))


# Kafka


@pytest.mark.apache
async def test_a_worker_folds_through_tls_and_a_password(
    secured: SecuredKafka, authority: Authority, stage: Stage, tmp_path: Path
) -> None:
    stage.bootstrap = secured.bootstrap_servers
    await create_topics(stage.bootstrap, [stage.source, stage.output, stage.dead])
    with debug(stage, kafka_variables(secured, authority, tmp_path)) as worker:
        await worker.wait_ready()
        await stage.send(200)
        await produce(stage.bootstrap, stage.source, [(b"k", b"no json")])
        outcome = await stage.outcome()
        letters = await stage.dead_letters(1)
        code = await worker.terminate()

    assert [] == outcome.faults(stage.sent)
    assert [b"no json"] == [letter.value for letter in letters]
    assert 0 == code
    assert [] == told(worker.log())


KAFKA_FAULTS = {
    "password": "the password of user 'worker' is refused: kafka.sasl_username, kafka.sasl_password_file = ",
    "mechanism": "kafka.sasl_mechanism = PLAIN is not offered",
    "authority": "the certificate is not trusted: ",
    "no authority": "kafka.ssl_cafile is not set, so only the authorities of the system are trusted",
    "plaintext": "the server speaks TLS there: kafka.security_protocol = PLAINTEXT",
    "tls": "the server does not speak TLS there: kafka.security_protocol = SASL_SSL",
}
"""What is wrong in the settings, and what is said of it."""


@pytest.mark.apache
@pytest.mark.parametrize("fault", KAFKA_FAULTS)
async def test_a_worker_kafka_does_not_let_in_ends_with_1_and_names_the_setting(
    secured: SecuredKafka, authority: Authority, stranger: Authority, stage: Stage, tmp_path: Path, fault: str
) -> None:
    variables = kafka_variables(
        secured, stranger if fault == "authority" else authority, tmp_path, "wrong" if fault == "password" else "kafka"
    )
    if fault == "no authority":
        del variables["STREAMS_APP_KAFKA_SSL_CAFILE"]
    if fault == "plaintext":
        variables["STREAMS_APP_KAFKA_SECURITY_PROTOCOL"] = "PLAINTEXT"
    if fault == "mechanism":
        variables["STREAMS_APP_KAFKA_SASL_MECHANISM"] = "PLAIN"
    if fault == "tls":
        variables["STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS"] = secured.bootstrap_servers
    with debug(stage, variables) as worker:
        code = await worker.wait_exit(LIMIT_SECONDS)

    assert 1 == code
    assert f"cannot reach Kafka at {variables['STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS']}: " in ended(worker.log())
    assert KAFKA_FAULTS[fault] in ended(worker.log())
    assert [] == told(worker.log())


@pytest.mark.apache
async def test_a_kafka_that_wants_a_password_is_told_from_one_that_is_away(
    secured: SecuredKafka, authority: Authority, tmp_path: Path
) -> None:
    variables = kafka_variables(secured, authority, tmp_path)
    kafka = KafkaSettings(
        bootstrap_servers=secured.secured_servers, security_protocol="SSL",
        ssl_cafile=Path(variables["STREAMS_APP_KAFKA_SSL_CAFILE"]),
    )  # fmt: skip
    wanted = await why_unreachable(kafka, KafkaConnectionError("Unable to bootstrap"))
    away = await why_unreachable(KafkaSettings(bootstrap_servers=f"{LOOPBACK}:{free_port()}"), KafkaConnectionError("as above"))

    assert (1, 75) == (wanted.exit_code, away.exit_code)
    assert "the server wants a password (it offers SCRAM-SHA-512): kafka.security_protocol = SSL" in str(wanted)
    assert "nothing listens at" in str(away)


# Redis


@pytest.fixture
def secured_redis(authority: Authority, tmp_path: Path) -> Iterator[str]:
    """Its address: Redis 7, which listens over TLS alone and wants a password; the Valkey wheel is built without TLS."""
    try:
        program = redis7.fetch()
    except ServerUnavailableError as error:
        _unavailable(error)
    signed, port = authority.sign("redis"), free_port()
    files = ["--tls-cert-file", str(signed.certificate), "--tls-key-file", str(signed.key)]
    command = [str(program), "--port", "0", "--tls-port", str(port), *files, "--tls-ca-cert-file", str(authority.certificate)]
    options = ["--bind", LOOPBACK, "--tls-auth-clients", "no", "--requirepass", CANARIES["redis"], "--save", ""]
    child = Child("redis", [*command, *options], tmp_path / "redis")

    def is_ready() -> bool:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True

    child.wait_until_ready(is_ready, 20_000)
    yield f"rediss://{LOOPBACK}:{port}/0"
    child.stop()


@pytest.mark.redis7
async def test_a_worker_folds_in_a_redis_with_tls_and_a_password(
    secured_redis: str, authority: Authority, stage: Stage, tmp_path: Path
) -> None:
    stage.redis_url = secured_redis
    stage.config()
    variables = {
        "STREAMS_APP_REDIS_PASSWORD_FILE": secret(tmp_path, "redis"),
        "STREAMS_APP_REDIS_SSL_CAFILE": str(authority.certificate),
    }
    with debug(stage, variables) as worker:
        await worker.wait_ready()
        await stage.send(200)
        outcome = await stage.outcome()
        code = await worker.terminate()

    assert [] == outcome.faults(stage.sent)
    assert 0 == code
    assert [] == told(worker.log())


REDIS_FAULTS = {
    "password": "the password is refused: redis.password_file = ",
    "no password": "a password is wanted: redis.password_file",
    "authority": "the certificate is not trusted: ",
    "no authority": "redis.ssl_cafile is not set, so only the authorities of the system are trusted",
    "plaintext": "the server speaks TLS there: redis.url begins with redis://",
}
"""As above."""


@pytest.mark.redis7
@pytest.mark.parametrize("fault", REDIS_FAULTS)
async def test_a_worker_redis_does_not_let_in_ends_with_1_and_names_the_setting(
    secured_redis: str, authority: Authority, stranger: Authority, stage: Stage, tmp_path: Path, fault: str
) -> None:
    stage.redis_url = secured_redis.replace("rediss:", "redis:") if fault == "plaintext" else secured_redis
    stage.config()
    variables = {}
    if fault != "no password":
        variables["STREAMS_APP_REDIS_PASSWORD_FILE"] = secret(tmp_path, "wrong" if fault == "password" else "redis")
    if fault not in ("no authority", "plaintext"):
        trusted = stranger if fault == "authority" else authority
        variables["STREAMS_APP_REDIS_SSL_CAFILE"] = str(trusted.certificate)
    with debug(stage, variables) as worker:
        code = await worker.wait_exit(LIMIT_SECONDS)

    assert 1 == code
    assert f"cannot reach Redis at {stage.redis_url}: " in ended(worker.log())
    assert REDIS_FAULTS[fault] in ended(worker.log())
    assert [] == told(worker.log())


# What is said


@pytest.mark.long
@pytest.mark.parametrize("where", ["file", "url"])
async def test_no_secret_is_told_in_a_crash_of_redis_and_a_resync(stage: Stage, tmp_path: Path, where: str) -> None:
    home = tmp_path / "valkey"
    password = CANARIES["redis" if where == "file" else "redis-url"]
    variables = {"STREAMS_APP_HTTP_TOKEN_FILE": secret(tmp_path, "http")}
    with guarded(None, home, password) as first:
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
            with guarded(first.port, home, password):
                await stage.send(60)
                outcome = await stage.outcome()
                pages += [page(worker, path)[1] for path in ("/metrics", "/groups", "/health/live", "/health/ready")]
                code = await worker.terminate()
    log = worker.log()

    assert [] == outcome.faults(stage.sent, is_exact=False)
    assert "claiming again: " in log
    assert " DEBUG " in log
    assert 0 == code
    assert [] == told(log + "".join(pages))
    settings = Settings.load(config, variables)
    assert [] == told(f"{settings!r} {settings} {settings.redis!r} {settings.redis.redacted_url}")


def guarded(port: int | None, home: Path, password: str) -> Valkey:
    """A Valkey that wants a password; what it held before is gone."""
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


def test_no_secret_is_in_what_settings_print(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "app_id": "a",
            "folds": [{"name": "f", "source": "s", "group_key": "g", "changed": "c", "quiet_period": "1s"}],
            "kafka": {"sasl_username": "u", "sasl_password_file": secret(tmp_path, "kafka")},
            "redis": {"url": f"redis://u:{CANARIES['redis-url']}@localhost/0", "password_file": secret(tmp_path, "redis")},
            "http": {"token_file": secret(tmp_path, "http")},
            "read_store": {
                "url": f"postgresql://u:{CANARIES['read-url']}@localhost/r",
                "folds": ["f"],
                "source_url": f"postgresql://u:{CANARIES['source-url']}@localhost/w",
                "sql": "SELECT 1",
            },
        }
    )
    parts = [settings, settings.kafka, settings.redis, settings.http, settings.read_store]

    assert [] == told(" ".join(f"{part!r} {part}" for part in parts))
    # The secrets are there all the same.
    used = f"{settings.kafka.sasl_password} {settings.redis.password} {settings.http.token} {settings.redis.url}"
    assert {CANARIES[kind] for kind in ("kafka", "redis", "http", "redis-url")} == set(told(used))


# HTTP


def outer_address() -> str:
    """An address of this machine that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = str(probe.getsockname()[0])
    if address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    return address


@pytest.mark.parametrize(("host", "is_open"), [(None, False), ("0.0.0.0", True)], ids=["by default", "when told so"])
async def test_the_pages_are_open_to_this_machine_only(stage: Stage, host: str | None, is_open: bool) -> None:
    address = outer_address()
    with debug(stage, {"STREAMS_APP_HTTP_HOST": host} if host else {}) as worker:
        url = await wait_until(lambda: worker.url, LIMIT_SECONDS, "it listens")
        with socket.socket() as client:
            client.settimeout(5)
            refused = client.connect_ex((address, urlsplit(url).port or 0))

    assert (host or LOOPBACK) == urlsplit(url).hostname
    assert is_open == (refused == 0)


async def test_a_token_is_wanted_for_all_but_the_health_pages(stage: Stage, tmp_path: Path) -> None:
    with debug(stage, {"STREAMS_APP_HTTP_TOKEN_FILE": secret(tmp_path, "http")}) as worker:
        await worker.wait_ready()
        tokens = [CANARIES["http"], None, "", CANARIES["wrong"], CANARIES["http"][:-1], f"{CANARIES['http']}x"]
        found = {path: [page(worker, path, token)[0] for token in tokens] for path in ("/metrics", "/groups", "/health/live")}

    assert {"/metrics": [200] + [401] * 5, "/groups": [200] + [401] * 5, "/health/live": [200] * 6} == found
