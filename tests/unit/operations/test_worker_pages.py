"""The address at which a worker's pages are requested."""

from __future__ import annotations

import pytest

from streams_app.health.metrics import Metrics
from streams_app.operations.worker_pages import metrics_url, page_of, pages, usual_url
from streams_app.settings import EventsSettings, HttpSettings, Settings


def settings_of(app_id: str) -> Settings:
    return Settings(app_id=app_id, events=EventsSettings(catalogue="shop:catalogue"))


@pytest.mark.parametrize("url", ["w:8080", "http://w:8080", "http://w:8080/", "http://w:8080/metrics", "http://w:8080/metrics/"])
def test_worker_may_be_named_in_several_ways(url: str) -> None:
    assert "http://w:8080/metrics" == metrics_url(url)


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("127.0.0.1", 8080, "http://127.0.0.1:8080"),
        ("0.0.0.0", 80, "http://127.0.0.1:80"),
        ("::", 8080, "http://[::1]:8080"),
        ("127.0.0.1", 0, None),
    ],
)
def test_worker_address_defaults_to_the_settings(host: str, port: int, url: str | None) -> None:
    assert url == usual_url(HttpSettings(host=host, port=port))


async def test_invalid_worker_address_affects_only_its_own_page() -> None:
    found = await pages(settings_of("shop"), ["http://[", "ftp://w"])

    assert [None, None] == [page.text for page in found]
    assert all(page.fault.startswith("does not answer (") for page in found)


@pytest.mark.parametrize(
    ("metrics_text", "fault"),
    [
        (Metrics(settings_of("shop")).exposition().decode(), ""),
        (Metrics(settings_of("social")).exposition().decode(), "belongs to the application social, not to shop"),
        ('streams_app_build_info{version="0.9"} 1.0\n', ""),
        ("# HELP go_info Something else.\n", "is not a worker of streams_app"),
    ],
    ids=["this application", "another application", "an older version", "something else"],
)
def test_worker_of_another_application_is_ignored(metrics_text: str, fault: str) -> None:
    page = page_of("http://w", metrics_text, "shop")

    assert (fault, not fault) == (page.fault, page.text == metrics_text)
