"""TLS and passwords of Kafka and Redis: they are required, they work, and a rejected worker names the cause and no secret."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from aiokafka.errors import KafkaConnectionError

from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.kafka.diagnosis import why_unreachable
from streams_app.settings import KafkaSettings
from tests.helpers.canaries import CANARIES, debug, kafka_variables, secret, secrets_in
from tests.helpers.cli.commands import run
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.worker.site import LIMIT_SECONDS, Stage
from tests.servers import redis7
from tests.servers.secured_kafka import ADMIN, SecuredKafka
from tests.servers.tls import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def untrusted_authority(authority: Authority) -> Authority:
    """Return an authority that has signed no certificate used here."""
    return Authority.make(authority.folder.parent / "another")


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[SecuredKafka]:
    running = SecuredKafka.start(authority, {ADMIN: CANARIES["broker"], "worker": CANARIES["kafka"]})
    with running:
        yield running


def ended(log: str) -> str:
    """Return the last message of the worker, for the person who started it."""
    return next(line for line in reversed(log.splitlines()) if line.startswith("error: "))


# Kafka


@pytest.mark.apache
async def test_worker_folds_through_tls_with_a_password(
    secured: SecuredKafka, authority: Authority, stage: Stage, tmp_path: Path
) -> None:
    stage.bootstrap = secured.bootstrap_servers
    await create_topics(stage.bootstrap, [stage.source, stage.output, stage.dead])
    with debug(stage, kafka_variables(secured, authority, tmp_path)) as worker:
        await worker.wait_ready()
        await stage.send(200)
        await produce(stage.bootstrap, stage.source, [(b"k", b"no json")])
        outcome = await stage.outcome()
        dead_letters = await stage.dead_letters(1)
        code = await worker.terminate()

    assert [] == outcome.faults(stage.sent)
    assert [b"no json"] == [dead_letter.value for dead_letter in dead_letters]
    assert 0 == code
    assert [] == secrets_in(worker.log())


KAFKA_FAULTS = {
    "password": "the password of user 'worker' was rejected: kafka.sasl_username, kafka.sasl_password_file = ",
    "mechanism": "kafka.sasl_mechanism = PLAIN is not offered",
    "authority": "the certificate is not trusted: ",
    "no authority": "kafka.ssl_cafile is not set, so only the authorities of the system are trusted",
    "plaintext": "the server speaks TLS there: kafka.security_protocol = PLAINTEXT",
    "tls": "the server does not speak TLS there: kafka.security_protocol = SASL_SSL",
}
"""Faults in the settings, and their messages."""


@pytest.mark.apache
@pytest.mark.parametrize("fault", KAFKA_FAULTS)
async def test_worker_rejected_by_kafka_ends_with_1_and_names_the_setting(
    secured: SecuredKafka, authority: Authority, untrusted_authority: Authority, stage: Stage, tmp_path: Path, fault: str
) -> None:
    variables = kafka_variables(
        secured, untrusted_authority if fault == "authority" else authority, tmp_path, "wrong" if fault == "password" else "kafka"
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
    assert [] == secrets_in(worker.log())


@pytest.mark.apache
async def test_commands_rejected_by_kafka_end_with_1_and_name_the_setting(
    secured: SecuredKafka, authority: Authority, stage: Stage, tmp_path: Path
) -> None:
    """The settings declare a fold, a live view and a read store; only the password is wrong."""
    dead = f'dead_letters = "{stage.dead}"\n'
    config = stage.config(
        fold='keep = "last"',
        extra=f'[read_stores.store]\nurl = "sqlite:///{tmp_path}/read.db"\nfolds = ["account-metrics"]\nsource = "carried"\n{dead}'
        f'[live.seen]\nsource = "{stage.source}"\nkind = "count"\npage = "page"\nitem = "id"\nexpiry = "1h"\npublic = true\n{dead}',
    )
    assert 0 == (await asyncio.to_thread(run, "read-store", "init", "--config", str(config))).code
    variables = kafka_variables(secured, authority, tmp_path, "wrong")
    ran = {
        " ".join(words): await asyncio.to_thread(partial(run, *words, "--config", str(config), cwd=tmp_path, **variables))
        for words in KAFKA_COMMANDS
    }

    assert dict.fromkeys(ran, 1) == {words: one.code for words, one in ran.items()}, ran
    assert [] == [words for words, one in ran.items() if KAFKA_FAULTS["password"] not in one.text]


KAFKA_COMMANDS = (
    ("check",), ("topics", "create"), ("dead-letters", "list"), ("dead-letters", "replay"),
    ("dead-letters", "replay", "--store", "store"), ("read-store", "verify"), ("read-store", "rebuild"),
    ("reset", "--fold", "account-metrics", "--yes"),
)  # fmt: skip
"""Commands that use Kafka. ``groups list``, ``live show`` and ``live serve`` use Redis alone."""


@pytest.mark.apache
async def test_kafka_that_requires_a_password_is_distinguished_from_an_unavailable_one(
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
    assert "the server requires a password (it offers SCRAM-SHA-512): kafka.security_protocol = SSL" in str(wanted)
    assert "nothing listens at" in str(away)


# Redis


@pytest.fixture
def secured_redis(authority: Authority, tmp_path: Path) -> Iterator[str]:
    """Yield the address of a Redis 7 that accepts TLS only and requires a password; the Valkey wheel is built without TLS."""
    program = redis7.fetch()
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
async def test_worker_folds_in_a_redis_with_tls_and_a_password(
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
    assert [] == secrets_in(worker.log())


REDIS_FAULTS = {
    "password": "the password was rejected: redis.password_file = ",
    "no password": "a password is wanted: redis.password_file",
    "authority": "the certificate is not trusted: ",
    "no authority": "redis.ssl_cafile is not set, so only the authorities of the system are trusted",
    "plaintext": "the server speaks TLS there: redis.url begins with redis://",
}
"""Faults in the Redis settings, and their messages."""


@pytest.mark.redis7
@pytest.mark.parametrize("fault", REDIS_FAULTS)
async def test_worker_rejected_by_redis_ends_with_1_and_names_the_setting(
    secured_redis: str, authority: Authority, untrusted_authority: Authority, stage: Stage, tmp_path: Path, fault: str
) -> None:
    stage.redis_url = secured_redis.replace("rediss:", "redis:") if fault == "plaintext" else secured_redis
    stage.config()
    variables = {}
    if fault != "no password":
        variables["STREAMS_APP_REDIS_PASSWORD_FILE"] = secret(tmp_path, "wrong" if fault == "password" else "redis")
    if fault not in ("no authority", "plaintext"):
        trusted = untrusted_authority if fault == "authority" else authority
        variables["STREAMS_APP_REDIS_SSL_CAFILE"] = str(trusted.certificate)
    with debug(stage, variables) as worker:
        code = await worker.wait_exit(LIMIT_SECONDS)

    assert 1 == code
    assert f"cannot reach Redis at {stage.redis_url}: " in ended(worker.log())
    assert REDIS_FAULTS[fault] in ended(worker.log())
    assert [] == secrets_in(worker.log())
