"""Live views in ``streams.toml``: what is accepted, and the messages for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams_app.errors import ConfigurationError
from tests.unit.settings.settings_file import faults, load

COUNT = """
app_id = "social"
[live.supporters]
kind = "count"
source = "contributions"
page = "project_id"
expiry = "24h"
public = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "streams.toml"


def test_views_alone_are_enough_to_run(file: Path) -> None:
    (view,) = load(file, COUNT + 'only = {"@type" = "made", "kind" = [1, "x"]}').live

    assert ("supporters", 86_400_000, "social.live.dead", 100_000) == (view.name, view.expiry_ms, view.dead_letters, view.keeps)
    assert {"@type": ("made",), "kind": (1, "x")} == view.only


def test_environment_overrides_a_view_and_its_server(file: Path) -> None:
    environ = {
        "STREAMS_APP_LIVE_SUPPORTERS_EXPIRY": "1h",
        "STREAMS_APP_LIVE_SERVER_ORIGINS": "https://a.example, https://b.example",
    }
    settings = load(file, COUNT, environ)

    assert 3_600_000 == settings.live[0].expiry_ms
    assert ("https://a.example", "https://b.example") == settings.live_server.origins


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("pages = 'x'", "live.supporters.pages: unknown key, did you mean 'page'?"),
        ("show = 5", 'live.supporters: show is for kind = "list"'),
        ("people = true", 'live.supporters: people is for kind = "presence"'),
        ('item = "a..b"', "live.supporters: item = 'a..b' is not a field or a dotted path"),
        ('only = "x"', """live.supporters.only: expected fields and their values, as in {status = "open"}"""),
        ('only = {"@kind" = "x"}', "live.supporters: '@kind' is neither @type nor a field or dotted path"),
        ('only = {"@type" = 1}', "live.supporters.only: @type is a header, whose values must be strings"),
        ("remove = {a = []}", "live.supporters.remove: 'a' must be a string, number or boolean, or a list of them"),
        ('dead_letters = "contributions"', "live.supporters.source is a dead-letter topic"),
        ('[live.a]\nkind = "list"', "live.a.expiry: is required"),
        (
            '[live.a]\nkind = "list"\nexpiry = "1h"\npublic = true\nshow = 51\npayload = [""]',
            'live.a: source is required for kind = "list"; page is required for kind = "list"; payload = \'\' is not a field or a '
            "dotted path; show is at most 50: a page that needs more requires a query of its own, not a live view",
        ),
        (
            '[live.a]\nkind = "presence"\nexpiry = "31d"\npublic = true\npeople = true\nsource = "t"',
            'live.a: kind = "presence" counts open pages and takes no source; people = true shows who is there, by their tokens: '
            "such a view cannot be public; expiry must be between 1s and 30d",
        ),
        (
            '[live.a]\nkind = "presence"\nexpiry = "4s"\npublic = true',
            'live.a: expiry of kind = "presence" must be at least 5s: hubs write once a second who is there',
        ),
        (
            '[live.a]\nkind = "presence"\nexpiry = "60s"\n[live.b]\nkind = "presence"\nexpiry = "60s"',
            "live.a, live.b: wants tokens, and live_server.secret_file is not set: name a file with a secret, or say public = true",
        ),
        ('[live_server]\norigins = ["example.com"]', "live_server.origins: 'example.com' is not an origin: scheme and host in "
         "lower case, as in https://www.example.com"),
        ('[live_server]\nhosts = ["https://a.example"]', "live_server.hosts: 'https://a.example' is not a host: a name or "
         "address in lower case, without port: live.example.com, [::1]"),
        ('[live_server]\nhosts = ["a.example:80"]', "live_server.hosts: 'a.example:80' is not a host"),
        ('[live_server]\nhosts = ["A.example"]', "live_server.hosts: 'A.example' is not a host"),
        ('[live_server]\nproxies = ["10.1.2.3/8"]', "live_server.proxies: '10.1.2.3/8' is not an address or a network, as in "
         "10.1.2.3 or 10.0.0.0/8"),
        ('[live_server]\ntabs_per_client = -1', "live_server.tabs_per_client"),
        ('[live_server]\ninterval = "1ms"\nbeat = "2m"', "live_server: interval must be between 50ms and 10s; beat must be between "
         "1s and 1m"),
    ],
)  # fmt: skip
def test_fault_states_location_and_fix(file: Path, text: str, fault: str) -> None:
    found = "; ".join(faults(file, COUNT + text))

    assert fault in found


def test_server_variable_is_not_mistaken_for_a_view_variable(file: Path) -> None:
    (fault,) = faults(file, COUNT, {"STREAMS_APP_LIVE_SERVER_PROT": "1"})

    assert "STREAMS_APP_LIVE_SERVER_PROT: no such setting, did you mean 'STREAMS_APP_LIVE_SERVER_PORT'?" == fault


def test_short_secret_is_rejected_and_several_lines_are_a_rotation(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    settings = load(file, f'{COUNT}[live_server]\nsecret_file = "{secret}"')
    secret.write_text("a" * 32 + "\n\n" + "b" * 40 + "\n")

    assert ("a" * 32, "b" * 40) == settings.live_server.secrets

    secret.write_text("short")
    with pytest.raises(ConfigurationError, match="at least 32 bytes"):
        _ = settings.live_server.secrets


def test_registry_format_needs_its_url_and_presence_view_has_no_format(file: Path) -> None:
    assert """live view 'supporters': format = "protobuf" needs schema_registry.url""" in "; ".join(
        faults(file, COUNT + 'format = "protobuf"\n')
    )
    assert "debezium" == load(file, COUNT + 'format = "debezium"\nremove = {"@op" = "d"}\n').live[0].format
    presence = '[live.here]\nkind = "presence"\nexpiry = "60s"\npublic = true\nformat = "debezium"\n'
    assert 'kind = "presence" counts open pages and takes no format' in "; ".join(faults(file, 'app_id = "a"\n' + presence))
