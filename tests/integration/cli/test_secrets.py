"""No output of a command contains a password: ``run`` looks for the canary."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis

from streams_app.embedded import Valkey
from tests.helpers.cli.commands import CANARY, WITH_SETTINGS, Place, run
from tests.helpers.kafka.topics import create_topics


@pytest.fixture
def valkey_with_password() -> Iterator[Valkey]:
    """Yield a Valkey that requires a password."""
    with Valkey.start() as valkey:
        with redis.Redis.from_url(valkey.url) as client:
            client.config_set("requirepass", CANARY)
        yield valkey


@pytest.mark.parametrize("is_right", [True, False])
async def test_redis_password_appears_in_no_output(place: Place, valkey_with_password: Valkey, is_right: bool) -> None:
    url = valkey_with_password.url.replace("//", f"//default:{CANARY}{'' if is_right else '-wrong'}@")
    config = place.config(redis_url=url)
    await create_topics(place.bootstrap, place.topics, 1)
    checked = await asyncio.to_thread(run, "check", "--config", config)
    listed = await asyncio.to_thread(run, "groups", "list", "--config", config)

    assert (checked.code, listed.code) == ((0, 0) if is_right else (1, 1)), checked.text + listed.text
    if not is_right:
        ran = await asyncio.to_thread(run, "worker", "--log-level", "debug", "--config", config)
        assert ran.code == 1


@pytest.mark.long
async def test_redis_password_file_is_used_and_its_content_appears_in_no_output(
    place: Place, valkey_with_password: Valkey, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text(f"{CANARY}\n", "utf-8")
    config = place.config(redis_url=valkey_with_password.url)
    without = await asyncio.to_thread(run, "groups", "list", "--config", config)
    with_it = await asyncio.to_thread(run, "groups", "list", "--config", config, STREAMS_APP_REDIS_PASSWORD_FILE=str(secret))

    assert (without.code, with_it.code) == (1, 0)
    assert "a password is wanted: redis.password_file" in without.err


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "create"],
        pytest.param(["check"], marks=pytest.mark.long),
        pytest.param(["worker", "--log-level", "debug"], marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_kafka_password_appears_in_no_output(words: Sequence[str], away: Place, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(CANARY, "utf-8")
    ran = run(
        *words,
        "--config",
        away.config(),
        STREAMS_APP_KAFKA_SECURITY_PROTOCOL="SASL_PLAINTEXT",
        STREAMS_APP_KAFKA_SASL_MECHANISM="PLAIN",
        STREAMS_APP_KAFKA_SASL_USERNAME="service",
        STREAMS_APP_KAFKA_SASL_PASSWORD_FILE=str(secret),
    )

    assert ran.code == (1 if words == ["check"] else 75)
    assert f"cannot reach Kafka at {away.bootstrap}" in ran.text


@pytest.mark.parametrize("words", WITH_SETTINGS, ids=" ".join)
def test_password_in_a_misplaced_setting_appears_in_no_output(words: Sequence[str], away: Place) -> None:
    ran = run(*words, "--config", away.config(redis_url=f"rediss:{CANARY}@localhost", app_id="a b", extra=f'password = "{CANARY}"'))

    assert ran.code == 1
    assert "app_id" in ran.err
