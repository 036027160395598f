"""Environment variables override the file; a variable that names something unknown is an error."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.settings.settings_file import MINIMAL, READ_STORE, SECOND, faults, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "streams.toml"


@pytest.mark.parametrize(
    ("variable", "text", "path", "expected"),
    [
        ("STREAMS_APP_APP_ID", "other", "app_id", "other"),
        ("STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS", "a:1,b:2", "kafka.bootstrap_servers", "a:1,b:2"),
        ("STREAMS_APP_KAFKA_PARTITIONS", "12", "kafka.partitions", 12),
        ("STREAMS_APP_KAFKA_SESSION_TIMEOUT", "5s", "kafka.session_timeout_ms", 5_000),
        ("STREAMS_APP_REDIS_URL", "rediss://h:1/2", "redis.url", "rediss://h:1/2"),
        ("STREAMS_APP_HTTP_PORT", "0", "http.port", 0),
        ("STREAMS_APP_WORKER_TICK", "250ms", "worker.tick_ms", 250),
        ("STREAMS_APP_WORKER_COMMIT_EVERY", "5s", "worker.commit_every_ms", 5_000),
        ("STREAMS_APP_LIMITS_NAME_BYTES", "64", "limits.name_bytes", 64),
        ("STREAMS_APP_READ_STORES_DASHBOARD_TABLE", "other", "read_stores.0.table", "other"),
        (
            "STREAMS_APP_READ_STORES_DASHBOARD_FOLDS",
            "account-metrics, second",
            "read_stores.0.folds",
            ("account-metrics", "second"),
        ),
    ],
)
def test_environment_overrides_the_file(file: Path, variable: str, text: str, path: str, expected: Any) -> None:
    found: Any = load(file, MINIMAL + SECOND + READ_STORE, {variable: text})
    for step in path.split("."):
        found = found[int(step)] if step.isdecimal() else getattr(found, step)

    assert expected == found


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("QUIET_PERIOD", "5m", timedelta(minutes=5)),
        ("GROUP_KEY", "tenant", "tenant"),
        ("GROUP_KEY", "tenant, account_id", ("tenant", "account_id")),
        ("MAX_EVENTS", "7", 7),
        ("KEEP", "last", "last"),
    ],
)
def test_environment_overrides_a_fold_whose_name_has_a_dash(file: Path, key: str, text: str, expected: Any) -> None:
    loaded = load(file, MINIMAL + SECOND, {f"STREAMS_APP_FOLDS_ACCOUNT_METRICS_{key}": text})

    assert expected == getattr(loaded.fold("account-metrics"), key.lower())
    assert timedelta(minutes=1) == loaded.fold("second").quiet_period


def test_foreign_environment_variables_are_ignored(file: Path) -> None:
    environ = {"PATH": "/bin", "STREAMS_APPLE": "1", "STREAMS_APP_CONFIG": "elsewhere", "STREAMS_APP_TEST_X": "1"}

    assert load(file) == load(file, environ=environ)


@pytest.mark.parametrize(
    ("text", "environ", "is_named"),
    [
        ("", {}, False),
        ("[http]\nhost = '::1'\n", {}, False),
        ("[http]\nport = 8080\n", {}, True),
        ("", {"STREAMS_APP_HTTP_PORT": "8080"}, True),
        ("[http]\nport = 0\n", {}, False),
    ],
)
def test_port_is_named_by_the_file_or_the_environment(file: Path, text: str, environ: dict[str, str], is_named: bool) -> None:
    assert is_named == load(file, MINIMAL + text, environ=environ).http.names_port


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("STREAMS_APP_KAFKA_PARTITION", ", did you mean 'STREAMS_APP_KAFKA_PARTITIONS'?"),
        ("STREAMS_APP_FOLDS_ACCOUNT_METRIC_QUIET_PERIOD", ", did you mean 'STREAMS_APP_FOLDS_ACCOUNT_METRICS_QUIET_PERIOD'?"),
        ("STREAMS_APP_FOLDS_ACCOUNT_METRICS_NAME", ", did you mean 'STREAMS_APP_FOLDS_ACCOUNT_METRICS_"),
        ("STREAMS_APP_READ_STORES_DASHBOARD_TABEL", ", did you mean 'STREAMS_APP_READ_STORES_DASHBOARD_TABLE'?"),
        (
            "STREAMS_APP_READ_STORES_SEARCH_TABLE",
            ", did you mean 'STREAMS_APP_READ_STORES_DASHBOARD_TABLE'? (of a read store, only where the file has its [read_stores.",
        ),
        ("STREAMS_APP_SUBSCRIBERS_SHIP_RATE", " (of a subscriber, only where the file has its [subscribers.NAME])"),
        ("STREAMS_APP_WORKER_PORT", ", did you mean STREAMS_APP_HTTP_PORT or STREAMS_APP_LIVE_SERVER_PORT?"),
        ("STREAMS_APP_WORKER_TCK", ", did you mean 'STREAMS_APP_WORKER_TICK'?"),
        ("STREAMS_APP_QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ", ""),
    ],
)
def test_unknown_variable_is_a_fault_with_the_nearest_name(file: Path, variable: str, expected: str) -> None:
    (fault,) = faults(file, MINIMAL + READ_STORE, environ={variable: "1"})

    assert fault.startswith(f"{variable}: no such setting{expected}")


def test_invalid_catalogue_reference_explains_the_syntax(file: Path) -> None:
    (fault,) = faults(file, MINIMAL, environ={"STREAMS_APP_EVENTS_CATALOGUE": "shop"})

    assert "events.catalogue: 'shop' is not module:name, as in \"shop.events:catalogue\"" == fault


def test_read_store_variable_without_a_name_suggests_the_correct_variable(file: Path) -> None:
    assert ["STREAMS_APP_READ_STORE_TABLE: every read store has a name: write STREAMS_APP_READ_STORES_NAME_..."] == faults(
        file, environ={"STREAMS_APP_READ_STORE_TABLE": "x"}
    )
