"""The file becomes frozen settings, or a list of all its faults."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.settings import RedisSettings, Settings
from tests.unit.settings.settings_file import MINIMAL, READ_STORE, SECOND, faults, load

OAUTH = "[kafka]\nsecurity_protocol = 'SASL_SSL'\nsasl_mechanism = 'OAUTHBEARER'\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "streams.toml"


def test_defaults_match_the_documentation(file: Path) -> None:
    loaded = load(file).model_dump()
    kafka, folds = loaded.pop("kafka"), loaded.pop("folds")

    assert {
        "app_id": "social",
        "redis": {
            "url": "redis://localhost:6379/0",
            "password_file": None,
            "ssl_cafile": None,
            "sentinel_username": None,
            "sentinel_password_file": None,
        },
        "http": {
            "host": "127.0.0.1",
            "port": 8080,
            "token_file": None,
            "flush_token_file": None,
            "flush_per_second": 100,
        },
        "worker": {
            "tick": timedelta(seconds=1),
            "commit_every": timedelta(seconds=2),
            "grace": timedelta(seconds=15),
            "native": "auto",
        },
        "limits": {"value_bytes": 1_000_000, "key_bytes": 512, "names_per_event": 256, "name_bytes": 256},
        "tracing": {"enabled": False},
        "schema_registry": {
            "url": None,
            "username": None,
            "password_file": None,
            "ssl_cafile": None,
            "timeout": timedelta(seconds=10),
            "cache_size": 1_000,
        },
        "read_stores": (),
        "events": {"catalogue": None},
        "subscribers": (),
        "live": (),
        "journals": (),
        "live_server": {
            "host": "127.0.0.1",
            "port": 8090,
            "interval": timedelta(milliseconds=250),
            "beat": timedelta(seconds=15),
            "connections": 1_000,
            "origins": (),
            "hosts": (),
            "proxies": ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"),
            "tabs_per_client": 20,
            "secret_file": None,
        },
        "console": {
            "listen": "127.0.0.1:8091",
            "workers": (),
            "hubs": (),
            "token_file": None,
            "hide_values": False,
            "allow_actions": False,
            "user_header": "",
            "public_url": "",
        },
    } == loaded
    assert ("localhost:9092", "PLAINTEXT", timedelta(seconds=10), 4, 1) == tuple(
        kafka[key] for key in ("bootstrap_servers", "security_protocol", "session_timeout", "partitions", "replication_factor")
    )
    assert [("account-metrics", "post-metric-updated.account-metrics")] == [(fold["name"], fold["output"]) for fold in folds]


def test_read_store_has_default_table_and_source(file: Path) -> None:
    read_store = load(file, MINIMAL + READ_STORE).read_store(None)

    assert ("sql", "folded_values", ("account-metrics",)) == (read_store.source, read_store.table, read_store.folds)


def test_read_store_must_be_named_unless_it_is_the_only_one(file: Path) -> None:
    two = load(file, MINIMAL + READ_STORE + READ_STORE.replace("dashboard", "search").replace("read.db", "search.db"))

    assert ["dashboard", "search"] == [store.name for store in two.read_stores]
    assert "search" == two.read_store("search").name
    assert "dashboard" == load(file, MINIMAL + READ_STORE).read_store(None).name
    with pytest.raises(ConfigurationError, match="several read stores: name one with --store: dashboard, search"):
        two.read_store(None)
    with pytest.raises(
        ConfigurationError, match="no read store 'serch', did you mean 'search'\\? \\(there are: dashboard, search\\)"
    ):
        two.read_store("serch")
    with pytest.raises(ConfigurationError, match=r"\[read_stores\.NAME\]"):
        load(file).read_store(None)


@pytest.mark.parametrize(
    ("url", "nodes"),
    [
        ("redis://h/0", [("h", 6379)]),
        ("redis+cluster://h", [("h", 6379)]),
        ("redis+cluster://u:p%2C@h:1,[::1]:2,i/0", [("h", 1), ("::1", 2), ("i", 6379)]),
        ("redis+sentinel://u:p%2C@h:1,[::1]:2,i/orders/3", [("h", 1), ("::1", 2), ("i", 26379)]),
        ("unix:///tmp/redis.sock", []),
    ],
)
def test_redis_url_names_one_server_or_several_nodes_or_sentinels(url: str, nodes: list[tuple[str, int]]) -> None:
    assert tuple(nodes) == RedisSettings(url=url).nodes


@pytest.mark.parametrize(
    ("path", "service"),
    [("orders", ("orders", 0)), ("orders/", ("orders", 0)), ("orders/3", ("orders", 3)), ("a%2Fb.c-d_e/1", ("a/b.c-d_e", 1))],
)
def test_sentinel_url_names_service_and_database(path: str, service: tuple[str, int]) -> None:
    assert service == RedisSettings(url=f"rediss+sentinel://u:p@h,i/{path}").service


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MINIMAL + "[kafak]\n", "kafak: unknown key, did you mean 'kafka'?"),
        (MINIMAL + "[kafka]\npartitons = 1\n", "kafka.partitons: unknown key, did you mean 'partitions'?"),
        (MINIMAL + "quiet_perod = '1m'\n", "folds.account-metrics.quiet_perod: unknown key, did you mean 'quiet_period'?"),
        (MINIMAL + "qqq = 1\n", "folds.account-metrics.qqq: unknown key"),
        (MINIMAL + "[worker]\nport = 1\n", "worker.port: unknown key, did you mean http.port or live_server.port?"),
        ("port = 1\n" + MINIMAL, "port: unknown key, did you mean http.port or live_server.port?"),
        (MINIMAL + "table = 'x'\n", "folds.account-metrics.table: unknown key, did you mean read_stores.NAME.table?"),
        (MINIMAL + READ_STORE + "tabel = 'x'\n", "read_stores.dashboard.tabel: unknown key, did you mean 'table'?"),
        (MINIMAL.replace("app_id", "appid"), "appid: unknown key, did you mean 'app_id'?"),
        (MINIMAL.replace("app_id", "appid"), "app_id: is required"),
        (MINIMAL.replace("source", "#"), "folds.account-metrics.source: is required"),
        (MINIMAL + "max_hold = 9\n", "folds.account-metrics.max_hold: 9 is not a duration: write a number and a unit"),
        (MINIMAL + "[worker]\ntick = '9ms'\n", "worker: tick must be between 10ms and 1m"),
        (MINIMAL + "[worker]\ncommit_every = '61s'\n", "worker: commit_every must be between 10ms and 1m"),
        (MINIMAL + "[kafka]\nsession_timeout = '301s'\n", "kafka: session_timeout must be between 1s and 5m"),
        (MINIMAL + "[kafka]\nsecurity_protocol = 'SASL_SSL'\n", "needs sasl_username and sasl_password_file"),
        (MINIMAL + OAUTH, "needs one of sasl_oauth_token_file, sasl_oauth_token_command, sasl_oauth_token_provider, not 0"),
        (MINIMAL + OAUTH + "sasl_oauth_token_file = 'a'\nsasl_oauth_token_command = 'b'\n", "sasl_oauth_token_provider, not 2"),
        (MINIMAL + "[kafka]\nsasl_oauth_token_file = 'a'\n", 'sasl_oauth_token_file needs sasl_mechanism = "OAUTHBEARER"'),
        (MINIMAL + "[kafka]\nsasl_oauth_extensions = {a = 'b'}\n", 'sasl_oauth_extensions needs sasl_mechanism = "OAUTHBEARER"'),
        (MINIMAL + OAUTH + "sasl_oauth_token_command = ' '\n", "kafka.sasl_oauth_token_command: is empty"),
        (MINIMAL + OAUTH + "sasl_oauth_token_command = \"a 'b\"\n", "is not a command: No closing quotation"),
        (MINIMAL + OAUTH + "sasl_oauth_token_provider = 'shop'\n", "kafka.sasl_oauth_token_provider: is not MODULE:NAME"),
        (MINIMAL + OAUTH + "sasl_oauth_extensions = {auth = 'b'}\n", "'auth' is not an extension"),
        (MINIMAL + OAUTH + 'sasl_oauth_extensions = {a = "b\\u0001"}\n', "'a' is not an extension"),
        (MINIMAL + "[http]\nport = 65536\n", "http.port: "),
        (MINIMAL + "[limits]\nkey_bytes = 0\n", "limits.key_bytes: "),
        (MINIMAL + "[redis]\nurl = 'http://h'\n", "redis.url: must begin with one of redis://, rediss://, redis+sentinel://"),
        (MINIMAL + "[redis]\nurl = 'redis+sentinel://h,i'\n", "redis.url: is not HOST:PORT,HOST:PORT,HOST:PORT/SERVICE/DATABASE"),
        (MINIMAL + "[redis]\nurl = 'redis+sentinel://h,i/'\n", "redis.url: is not HOST:PORT,HOST:PORT,HOST:PORT/SERVICE/DATABASE"),
        (MINIMAL + "[redis]\nurl = 'redis+sentinel://h,/s'\n", "redis.url: is not HOST:PORT,HOST:PORT,HOST:PORT/SERVICE/DATABASE"),
        (MINIMAL + "[redis]\nurl = 'redis+sentinel://h/s/x'\n", "redis.url: is not HOST:PORT,HOST:PORT,HOST:PORT/SERVICE/DATABASE"),
        (MINIMAL + "[redis]\nurl = 'redis+sentinel://h/s?db=1'\n", "redis.url: takes no options behind the database"),
        (MINIMAL + "[redis]\nsentinel_password_file = 'f'\n", "redis: sentinel_username and sentinel_password_file need a url"),
        (MINIMAL + "[redis]\nurl = 'redis+sentinel://h/s'\nsentinel_username = 'u'\n", "sentinel_username needs sentinel_password"),
        (MINIMAL + "[redis]\nurl = 'redis://h/0?foo=bar'\n", "redis.url: takes no options behind the database"),
        (MINIMAL + "[redis]\nurl = 'redis://h,i/0'\n", "redis.url: takes several servers, with commas, only for a Redis Cluster"),
        (MINIMAL + "[redis]\nurl = 'redis+cluster://h:1,'\n", "redis.url: is not HOST:PORT,HOST:PORT"),
        (MINIMAL + "[redis]\nurl = 'redis+cluster://h:1,i:70000'\n", "redis.url: is not HOST:PORT,HOST:PORT"),
        (MINIMAL + "[redis]\nurl = 'redis://h/0'\nssl_cafile = 'ca.pem'\n", "redis: ssl_cafile needs a url that begins with rediss://"),
        (MINIMAL + READ_STORE + "table = 'a b'\n", "'a b' is not a name of a table: letters, digits and _"),
        (MINIMAL + READ_STORE + "table = 'a.b.c'\n", "'a.b.c' is not a name of a table"),
        (MINIMAL + READ_STORE + "table = 'app.x'\n", "table = 'app.x': there are schemas only in PostgreSQL; leave out"),
        (MINIMAL + READ_STORE.replace("sql =", "# "), 'read_stores.dashboard: source = "sql" needs source_url and sql'),
        (MINIMAL + READ_STORE.replace("account-m", "acount-m"), "no fold 'acount-metrics', did you mean 'account-metrics'?"),
        (MINIMAL + READ_STORE.replace("s.dashboard]", "]"), "write [read_stores.NAME] instead of [read_store]"),
        (MINIMAL + READ_STORE.replace("dashboard", "Dash"), "read_stores.Dash.name: the name of a read store has a-z"),
        (MINIMAL + READ_STORE + "name = 'x'", "read_stores.dashboard.name: unknown key"),
        (MINIMAL + READ_STORE.replace('["account-metrics"]', "[]"), "read_stores.dashboard.folds: "),
        (MINIMAL + READ_STORE + READ_STORE.replace("dashboard", "other"),
         "read_stores.other and read_stores.dashboard have the same url and table"),
        (MINIMAL + READ_STORE + "source = 'carried'", "needs keep = \"last\" in fold 'account-metrics'"),
        (
            MINIMAL.replace('changed = "metrics"', 'keep = "events"') + READ_STORE,
            "fold 'account-metrics' has keep = \"events\", and a read store needs changed names",
        ),
        (MINIMAL + READ_STORE + "table = 'a; b'", "read_stores.dashboard.table: "),
        (MINIMAL + READ_STORE + "shape = 'rows'", "read_stores.dashboard.shape: "),
        (MINIMAL + READ_STORE + "shape = 'groups'", 'read_stores.dashboard: shape = "groups" needs columns'),
        (MINIMAL + READ_STORE + "columns = ['a']", 'read_stores.dashboard: columns are for shape = "groups"'),
        (MINIMAL.replace('"social"', '"a b"'), "app_id: "),
        ('app_id = "social"\n', "folds: declare at least one fold, as a table [folds.NAME]"),
        ('app_id = "social"\n[folds]\n', "folds: declare at least one fold, as a table [folds.NAME]"),
        ('app_id = "social"\nfolds = 3\n', "folds: "),
        ('app_id = "social"\n[folds]\na = 3\n', "folds.0: "),
        (MINIMAL + SECOND + "output = 'post-metric-updated.account-metrics'\n", "two folds have the same output topic"),
        (MINIMAL + SECOND.replace("post-metric-updated", "post-metric-updated.account-metrics"), "is both an output and a source"),
    ],
)  # fmt: skip
def test_fault_states_location_and_problem(file: Path, text: str, expected: str) -> None:
    found = faults(file, text)

    assert [expected] == [expected for fault in found if expected in fault]


def test_all_faults_of_file_and_environment_are_reported_at_once(file: Path) -> None:
    text = MINIMAL.replace("changed", "chnged") + "[kafka]\npartitions = 0\n[limits]\nnam_bytes = 1\n"
    found = faults(file, text, {"STREAMS_APP_REDIS_ULR": "x", "STREAMS_APP_HTTP_PORT": "eighty"})
    begins = ("folds.account-metrics.changed: is required", "folds.account-metrics.chnged: unknown key", "kafka.partitions: ",
              "limits.nam_bytes: unknown key", "STREAMS_APP_REDIS_ULR: ", "http.port: ")  # fmt: skip

    assert [[begin] for begin in begins] == [[begin for fault in found if fault.startswith(begin)] for begin in begins]
    assert len(begins) == len(found)


def test_missing_file_error_lists_the_ways_to_name_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*absent\.toml: .*--config or STREAMS_APP_CONFIG"):
        Settings.load(tmp_path / "absent.toml", {})


@pytest.mark.parametrize("content", [b"app_id = ", b"app_id = 'a'\napp_id = 'b'", b"{}"])
def test_invalid_toml_is_a_fault(file: Path, content: bytes) -> None:
    file.write_bytes(content)

    with pytest.raises(ConfigurationError, match="is not TOML"):
        Settings.load(file, {})


def test_file_without_end_is_a_fault() -> None:
    with pytest.raises(ConfigurationError, match="cannot read /dev/zero: it has more than 16777216 bytes"):
        Settings.load(Path("/dev/zero"), {})


def test_file_that_is_not_utf8_is_a_fault(file: Path) -> None:
    file.write_bytes(b"app_id = '\xff'")

    with pytest.raises(ConfigurationError, match="cannot read"):
        Settings.load(file, {})


def test_file_is_found_by_argument_then_variable_then_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("given", "named", "streams"):
        (tmp_path / f"{name}.toml").write_text(MINIMAL.replace("social", name), "utf-8")
    named = {"STREAMS_APP_CONFIG": "named.toml"}

    assert "given" == Settings.load(tmp_path / "given.toml", named).app_id
    assert "named" == Settings.load(None, named).app_id
    assert "streams" == Settings.load(None, {}).app_id


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"STREAMS_APP_TEST_X": "1"}, ["there is no streams.toml here"]),
        ({"STREAMS_APP_APP_ID": "a"}, ["folds: declare at least one fold"]),
        ({"STREAMS_APP_HTTP_PORT": "0"}, ["app_id: is required", "folds: declare at least one fold"]),
    ],
)
def test_faults_list_the_required_settings_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigurationError) as caught:
        Settings.load(None, environ)

    assert expected == [begin for begin in expected for fault in caught.value.faults if fault.startswith(begin)]
    assert len(expected) == len(caught.value.faults)


def test_settings_are_frozen(file: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(file).app_id = "other"  # type: ignore[misc]  # the assignment is the fault under test


def test_unknown_fold_is_a_fault_that_lists_the_declared_ones(file: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(file, MINIMAL + SECOND).fold("secnd")

    assert ["there is no fold 'secnd', did you mean 'second'? (there are: account-metrics, second)"] == caught.value.faults


def test_shared_source_of_several_folds_is_listed_once(file: Path) -> None:
    assert ("post-metric-updated",) == load(file, MINIMAL + SECOND).sources


@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        ('quiet_period = "99999999999999d"', {}, "too long a duration"),
        (f'quiet_period = "{"9" * 400}s"', {}, "too long a duration"),
        ('quiet_period = "1s"\nname = "g"', {}, "folds.f.name: unknown key"),
        ('quiet_period = "1s"', {"STREAMS_APP_KAFKA_PARTITIONS": "4"}, "kafka is not a table"),
    ],
)
def test_settings_beyond_their_bounds_are_faults(text: str, environ: dict[str, str], expected: str, tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    section = 'kafka = "x"\n' if environ else ""
    path.write_text(f'app_id = "a"\n{section}[folds.f]\nsource = "s"\ngroup_key = "g"\nchanged = "c"\n{text}\n')

    with pytest.raises(ConfigurationError) as caught:
        Settings.load(path, environ)

    assert expected in str(caught.value)


def test_dead_letter_topic_of_one_fold_may_not_be_the_output_of_another() -> None:
    declared: dict[str, Any] = {"source": "s", "group_key": "g", "changed": "c", "quiet_period": "1s"}
    one = Fold(name="one", **declared)
    two = Fold(name="two", dead_letters=one.output, **declared)

    with pytest.raises(ValueError, match="dead-letter topic and a source or an output"):
        Settings(app_id="a", folds=(one, two))


def test_value_of_the_wrong_kind_is_one_fault_that_names_the_expected_kind(tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    path.write_text('app_id = "a"\n[folds.f]\nsource = "s"\ngroup_key = 5\nchanged = ["x"]\nquiet_period = "1s"\ndecode = "x"\n')

    with pytest.raises(ConfigurationError) as caught:
        Settings.load(path, {})

    assert [
        'folds.f.group_key: must be a field, a dotted path, a list of them, or "@key"',
        "folds.f.changed: must be the name of a field",
        "folds.f.decode: a function, only in Python",
    ] == caught.value.faults
