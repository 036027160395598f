"""PostgreSQL settings that are checked before a connection."""

from __future__ import annotations

import sys

import pytest
from pydantic import ValidationError

from streams_app.errors import ConfigurationError
from streams_app.read_store.postgresql.connection import servers_of
from streams_app.read_store.registry import open_source, open_store
from streams_app.settings import ReadStoreSettings, redacted

URL = "postgresql://u:s3cret@db:5432/read"


def settings(**given: object) -> ReadStoreSettings:
    return ReadStoreSettings.model_validate(
        {"name": "dashboard", "url": URL, "folds": ["f"], "source_url": URL, "sql": "SELECT 1, 2, 3", **given}
    )


@pytest.mark.parametrize(
    "url",
    ["postgresql://", "postgresql://db", "postgresql://u:s3c/ret@db/", "postgresql://u:s3cret@db:x/read",
     "postgresql://app:12/s3c@host/db", "postgresql://app:12/s?s3c@host/db", "postgresql://app:12/s#s3c@host/db"],
)  # fmt: skip
def test_invalid_url_is_rejected_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"read_stores\.dashboard\.url: expected postgresql://USER@HOST") as caught:
        open_store(settings(url=url))
    with pytest.raises(ConfigurationError, match=r"read_stores\.dashboard\.source_url: expected postgresql://USER@HOST"):
        open_source(settings(source_url=url))

    assert all(secret not in str(caught.value) for secret in ("s3c", "12"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (URL, "postgresql://db:5432/read"),
        (f"{URL}?password=s3cret&sslmode=require", "postgresql://db:5432/read?password=***&sslmode=require"),
        ("postgresql://db/read?user=u&pass%77ord=s3cret", "postgresql://db/read?user=u&pass%77ord=***"),
        ("postgresql://db/read?sslpassword=s3cret", "postgresql://db/read?sslpassword=***"),
        ("postgresql://u:p@a:1,b:2/read", "postgresql://a:1,b:2/read"),
        ("postgresql://app:12/ss@host/db", "postgresql://host/db"),
    ],
)
def test_password_is_hidden_anywhere_in_a_url(url: str, expected: str) -> None:
    assert expected == redacted(url)


@pytest.mark.parametrize(
    "url",
    ["postgresql://a:1,b:2/read?target_session_attrs=read-write", "postgresql://u:p@[::1]:5432,b/read",
     "postgresql://u:p[@a,[::1]:5432/read", "postgresql://%2Ftmp/read"],
)  # fmt: skip
def test_url_may_name_several_hosts(url: str) -> None:
    open_store(settings(url=url))
    open_source(settings(source_url=url))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p%40@a,[::1]:2/b%20c?sslmode=disable",
         ("postgresql:///b%20c?sslmode=disable", {"user": "u", "password": "p@", "host": ["a", "::1"], "port": [5432, 2]})),
        ("postgres://%2Ftmp/read", ("postgres:///read", {"host": ["/tmp"]})),  # asyncpg reads PGPORT
        ("postgresql:///read", ("postgresql:///read", {})),  # asyncpg reads PGHOST
        ("postgresql://:5433/read", ("postgresql:///read", {"host": ["localhost"], "port": [5433]})),
    ],
)  # fmt: skip
def test_servers_and_user_of_a_url_are_arguments_of_the_driver(url: str, expected: object) -> None:
    assert expected == servers_of(url)


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:s3cret@a:1,b:x/read", "postgresql://u:s3cret@a:0,b/read", "postgresql://a,/read", "postgresql://a,[b]/r"],
)
def test_each_of_several_hosts_has_a_valid_port(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"read_stores\.dashboard\.url: expected postgresql://USER@HOST"):
        open_store(settings(url=url))


@pytest.mark.parametrize("query", ["sslmode=bogus", "target_session_attrs=bogus", "sslmode=verify-full&sslrootcert=/absent"])
async def test_unusable_url_parameter_is_a_configuration_error(query: str) -> None:
    store = open_store(settings(url=f"postgresql://u@127.0.0.1:1/read?{query}"))
    with pytest.raises(ConfigurationError, match=r"read store dashboard postgresql://127\.0\.0\.1:1/read"):
        await store.checkpoints()
    await store.close()


def test_table_name_the_server_would_truncate_is_rejected() -> None:
    assert settings(table="a" * 45).table
    with pytest.raises(ValidationError, match="is not a name of a table"):
        settings(table="a" * 46)


def test_missing_driver_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    for name in [name for name in sys.modules if name.startswith("streams_app.read_store.postgresql")]:
        monkeypatch.delitem(sys.modules, name)

    for opened in (open_store, open_source):
        with pytest.raises(ConfigurationError, match="asyncpg is not installed; pip install asyncpg"):
            opened(settings())
