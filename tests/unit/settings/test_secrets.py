"""Secrets in settings: where they do not appear, and passwords read from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams_app.errors import ConfigurationError
from streams_app.settings import RedisSettings
from tests.unit.settings.settings_file import MINIMAL, READ_STORE, faults, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "streams.toml"


def test_secrets_appear_in_no_repr(file: Path) -> None:
    text = MINIMAL + READ_STORE.replace("sqlite:///read.db", "postgresql://u:s3cret@h/d").replace("sqlite:///write.db", "x:s3cret")
    loaded = load(file, text, {"STREAMS_APP_REDIS_URL": "redis://u:s3cret@h/0"})

    assert "s3cret" in loaded.redis.url
    assert "s3cret" not in repr(loaded) + str(loaded)


def test_secret_in_an_invalid_url_appears_in_no_fault(file: Path) -> None:
    assert "s3cret" not in "".join(faults(file, environ={"STREAMS_APP_REDIS_URL": "redsi://u:s3cret@h/0"}))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:s3cret@h:1/2", "redis://h:1/2"),
        ("rediss://user:p@ss@h:1/2", "rediss://h:1/2"),
        ("redis+cluster://user:s3cret@h:1", "redis+cluster://h:1"),
        ("redis+sentinel://user:s3cret@h:1,i:2/orders/0", "redis+sentinel://h:1,i:2/orders/0"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("unix:///run/a@b/redis.sock", "unix:///run/a@b/redis.sock"),
        ("unix:///run/redis.sock?db=1&password=s3cret", "unix:///run/redis.sock?db=1&password=***"),
    ],
)
def test_redacted_url_contains_neither_user_nor_password(url: str, expected: str) -> None:
    assert expected == RedisSettings(url=url).redacted_url


def test_password_is_read_from_its_file_at_each_use(tmp_path: Path) -> None:
    file = tmp_path / "password"
    redis = RedisSettings(password_file=file)
    file.write_text("first\n", "utf-8")
    first = redis.password
    file.write_text("second", "utf-8")

    assert ("first", "second") == (first, redis.password)


def test_unreadable_password_file_error_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"redis\.password_file: cannot read"):
        _ = RedisSettings(password_file=tmp_path / "absent").password


def test_password_file_without_end_is_a_fault() -> None:
    with pytest.raises(ConfigurationError, match=r"redis\.password_file: cannot read /dev/zero: it has more than 65536 bytes"):
        _ = RedisSettings(password_file=Path("/dev/zero")).password
