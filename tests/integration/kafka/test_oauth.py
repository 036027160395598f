"""SASL/OAUTHBEARER on Apache Kafka: a worker continues when its tokens expire, and reports why a token is rejected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.helpers.cli.commands import Ran, run
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Stage
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.oauth_kafka import Issuer, OAuthKafka

pytestmark = pytest.mark.apache

LIFETIME_SECONDS = 4
EXPIRIES = 3
CONNECTED = "Authenticated via OAUTHBEARER"

PROVIDER = """
from pathlib import Path

import jwt


def current():
    token = Path("current.token").read_text()
    return token, jwt.decode(token, options={"verify_signature": False})["exp"] * 1000
"""


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def kafka(issuer: Issuer) -> Iterator[OAuthKafka]:
    """Yield a broker that closes each connection when its token expires."""
    with OAuthKafka.start(issuer, reauthentication_ms=3_600_000) as running:
        yield running


@pytest.fixture
def secured(stage: Stage) -> Stage:
    """Return the application on the listener without tokens, which the fixtures took from this module's `kafka`."""
    stage.config()
    return stage


def variables(kafka: OAuthKafka, **tokens: str) -> dict[str, str]:
    return {
        "STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS": kafka.oauth_servers,
        "STREAMS_APP_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "STREAMS_APP_KAFKA_SASL_MECHANISM": "OAUTHBEARER",
        **{f"STREAMS_APP_KAFKA_SASL_OAUTH_TOKEN_{kind.upper()}": value for kind, value in tokens.items()},
    }


@asynccontextmanager
async def refreshed(path: Path, issuer: Issuer, issued: list[str]) -> AsyncIterator[None]:
    """Keep a short-lived token in a file; ``issued`` gets each one."""

    def write() -> None:
        issued.append(issuer.token(seconds=LIFETIME_SECONDS))
        part = path.with_suffix(".part")
        part.write_text(issued[-1], "utf-8")
        part.replace(path)

    async def forever() -> None:
        while True:
            await asyncio.sleep(1)
            write()

    write()
    task = asyncio.create_task(forever())
    try:
        yield
    finally:
        task.cancel()


class Expiry:
    """Whether all tokens issued before have expired, and the worker has connected again since."""

    def __init__(self, worker: WorkerProcess, issued: list[str]) -> None:
        self._worker, self._issued = worker, issued
        self._tokens, self._connections = len(issued) + LIFETIME_SECONDS, worker.log().count(CONNECTED)

    def __call__(self) -> bool:
        return len(self._issued) >= self._tokens and self._worker.log().count(CONNECTED) > self._connections


def run_with_kafka(stage: Stage, given: Mapping[str, str]) -> Ran:
    """Run a command that needs Kafka."""
    command = partial(run, **given)  # type: ignore[arg-type]  # variables
    return command("dead-letters", "list", "--config", str(stage.folder / "streams.toml"))


def worker_of(stage: Stage, given: Mapping[str, str]) -> WorkerProcess:
    return WorkerProcess(stage.folder / "streams.toml", stage.folder, given, ["--log-level", "debug"])


@pytest.mark.parametrize("kind", ["file", "command", "provider"])
async def test_worker_folds_everything_while_its_tokens_expire(
    kafka: OAuthKafka, issuer: Issuer, secured: Stage, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "current.token"
    source = {"file": str(path), "command": f"cat {path}", "provider": "tokens_of_shop:current"}[kind]
    given = {**variables(kafka, **{kind: source}), "PYTHONPATH": str(tmp_path)}
    (tmp_path / "tokens_of_shop.py").write_text(PROVIDER.replace("current.token", str(path)), "utf-8")
    issued: list[str] = []
    async with refreshed(path, issuer, issued):
        with worker_of(secured, given) as worker:
            await worker.wait_ready()
            for _ in range(EXPIRIES):
                await secured.send(50)
                await wait_until(Expiry(worker, issued), LIMIT_SECONDS, "connections with new tokens")
            await secured.send(50)
            outcome = await secured.outcome()
            code = await worker.terminate()

    log = worker.log()
    assert [] == outcome.faults(secured.sent)
    assert 0 == code
    assert [] == [token for token in issued if token in log]


async def test_worker_resumes_after_an_outage_of_its_token_issuer(
    kafka: OAuthKafka, issuer: Issuer, secured: Stage, tmp_path: Path
) -> None:
    path = tmp_path / "current.token"
    path.write_text(issuer.token(seconds=LIFETIME_SECONDS), "utf-8")
    with worker_of(secured, variables(kafka, file=str(path))) as worker:
        async with refreshed(path, issuer, []):  # a slow start may outlast the first token
            await worker.wait_ready()
        await secured.send(50)
        await wait_until(lambda: "invalid_token" in worker.log(), LIMIT_SECONDS, "the broker rejects the expired token")
        path.unlink()
        await wait_until(lambda: f"cannot read {path}" in worker.log(), LIMIT_SECONDS, "the missing file is reported")
        async with refreshed(path, issuer, []):
            await secured.send(50)
            outcome = await secured.outcome()
            code = await worker.terminate()

    assert [] == outcome.faults(secured.sent)
    assert 0 == code


FAULTS = {
    "expired": (75, "the broker rejects the token (iss 'https://issuer.test', aud 'kafka', sub 'worker', expired at "),
    "issuer": (1, "the broker rejects the token (iss 'https://another.test', aud 'kafka', sub 'worker', expires at "),
    "audience": (1, "the broker rejects the token (iss 'https://issuer.test', aud 'other', sub 'worker', expires at "),
    "key": (1, "the broker rejects the token (iss 'https://issuer.test', aud 'kafka', sub 'worker', expires at "),
    "no JWT": (1, "the broker rejects the token (it is not a JWT): kafka.sasl_oauth_token_file = "),
    "two words": (75, "is not a token, which is one word of at most 65,536 ASCII characters"),
    "empty": (75, "is empty"),
    "away": (75, "kafka.sasl_oauth_token_file: cannot read "),
    "password": (1, "kafka.sasl_mechanism = SCRAM-SHA-512 is not offered"),
    "nothing": (1, "the server requires a token (it offers OAUTHBEARER): kafka.security_protocol = PLAINTEXT"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rejected_token_ends_a_command_with_the_reason(
    kafka: OAuthKafka, issuer: Issuer, secured: Stage, tmp_path: Path, fault: str
) -> None:
    tokens = {
        "expired": issuer.token(seconds=-60),
        "issuer": issuer.token(iss="https://another.test"),
        "audience": issuer.token(aud="other"),
        "key": Issuer().token(),
        "no JWT": "nonsense",
        "two words": "one two",
        "empty": "",
    }
    path = tmp_path / "current.token"
    if fault != "away":
        path.write_text(tokens.get(fault, issuer.token()), "utf-8")
    given = variables(kafka, file=str(path))
    if fault == "password":
        del given["STREAMS_APP_KAFKA_SASL_OAUTH_TOKEN_FILE"]
        given |= {"STREAMS_APP_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512", "STREAMS_APP_KAFKA_SASL_USERNAME": "worker"}
        given["STREAMS_APP_KAFKA_SASL_PASSWORD_FILE"] = str(path)
    if fault == "nothing":
        given = {"STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS": kafka.oauth_servers}
    code, text = FAULTS[fault]

    ran = run_with_kafka(secured, given)

    assert (code, True) == (ran.code, text in ran.text), ran.text
    assert fault == "no JWT" or tokens.get(fault, issuer.token()) not in (ran.text or "") or not tokens.get(fault)


COMMAND_FAULTS = {
    "no such program": ("get-token-of-nobody", 1, "cannot run get-token-of-nobody: No such file or directory"),
    "exit code": ("sh -c 'echo issuer is away >&2; exit 3'", 75, "sh ended with 3: issuer is away"),
    "empty": ("true", 75, "what it prints is empty"),
    "JSON": ("""echo '{"error": "invalid_client"}'""", 1, "what it prints is JSON without access_token"),
}


@pytest.mark.parametrize("fault", COMMAND_FAULTS)
def test_failing_token_command_ends_a_command_with_its_error(kafka: OAuthKafka, secured: Stage, fault: str) -> None:
    command, code, text = COMMAND_FAULTS[fault]

    ran = run_with_kafka(secured, variables(kafka, command=command))

    assert (code, True) == (ran.code, text in ran.text), ran.text


def test_token_command_may_print_the_response_of_an_oauth_server(
    kafka: OAuthKafka, issuer: Issuer, secured: Stage, tmp_path: Path
) -> None:
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps({"access_token": issuer.token(), "token_type": "Bearer", "expires_in": 300}), "utf-8")

    ran = run_with_kafka(secured, variables(kafka, command=f"cat {answer}"))

    assert 0 == ran.code, ran.text
