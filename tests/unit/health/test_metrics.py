"""Every metric is registered once; some series exist from the start."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streams_app import Catalogue, Events
from streams_app.health.metric_table import DELAY_BUCKETS, METRICS
from streams_app.health.metrics import Metrics, observe_all
from streams_app.reasons import OF_FOLDS, OF_READ_STORES
from streams_app.settings import Settings
from tests.helpers.events.shop import parcel_sent


@pytest.fixture
def metrics() -> Metrics:
    fold = {"source": "events", "group_key": "id", "changed": "fields", "quiet_period": "1s"}
    return Metrics(Settings.model_validate({"app_id": "a", "folds": [{**fold, "name": "one"}, {**fold, "name": "two"}]}))


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}


def test_metric_names_are_unique() -> None:
    names = [metric.name for metric in METRICS]

    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_rules_of_prometheus(metric) -> None:
    assert re.fullmatch(r"streams_app_[a-z_]+", metric.name)
    assert (metric.kind == "counter") is metric.name.endswith("_total")
    assert (metric.kind == "histogram") is bool(metric.buckets)
    assert sorted(metric.buckets) == list(metric.buckets)
    assert metric.help.endswith(".")
    assert metric.advice.endswith(".")
    assert "group" not in metric.labels


def test_every_metric_has_a_declared_attribute_and_every_attribute_a_metric() -> None:
    assert {metric.attribute for metric in METRICS} == set(Metrics.__annotations__)


def test_series_of_each_fold_exist_before_anything_happens(metrics: Metrics) -> None:
    found = samples(metrics)
    for metric in METRICS:
        if metric.labels == ("fold",):
            name = f"{metric.name}_count" if metric.kind == "histogram" else metric.name
            for fold in ("one", "two"):
                assert found[name, (("fold", fold),)] == pytest.approx(metric.initial, nan_ok=True)


def test_first_dead_letter_of_a_fold_or_read_store_is_an_increase_for_any_reason() -> None:
    fold = {"name": "one", "source": "events", "group_key": "id", "changed": "fields", "quiet_period": "1s", "keep": "last"}
    store = {"name": "read", "url": "sqlite:///read.db", "folds": ["one"], "source": "carried"}
    found = samples(Metrics(Settings.model_validate({"app_id": "a", "folds": [fold], "read_stores": [store]})))

    assert {0.0} == {found["streams_app_dead_letters_total", (("fold", "one"), ("reason", one))] for one in OF_FOLDS}
    of_stores = {found["streams_app_read_store_dead_letters_total", (("reason", one), ("store", "read"))] for one in OF_READ_STORES}
    assert {0.0} == of_stores


def test_publishing_program_exposes_its_series_before_the_first_event() -> None:
    registry = CollectorRegistry()
    settings = Settings.model_validate({"app_id": "shop", "events": {"catalogue": "tests.helpers.events.shop:catalogue"}})
    Events(settings, Catalogue(events=(parcel_sent,)), metrics=registry)
    results = ("acknowledged", "refused", "unknown")
    name = "streams_app_published_total"

    assert [0.0] * 3 == [registry.get_sample_value(name, {"event": "parcel.sent", "result": one}) for one in results]


def test_metrics_page_shows_process_version_and_application(metrics: Metrics) -> None:
    found = samples(metrics)

    assert found["streams_app_build_info", (("app_id", "a"), ("version", version("streams_app")))] == 1
    assert found["process_resident_memory_bytes", ()] > 0
    assert found["process_cpu_seconds_total", ()] > 0
    assert found["process_open_fds", ()] > 0


def test_two_applications_in_one_process_count_separately(metrics: Metrics) -> None:
    other = Metrics(Settings.model_validate({"app_id": "b", "folds": [
        {"name": "one", "source": "events", "group_key": "id", "changed": "fields", "quiet_period": "1s"}]}))  # fmt: skip
    metrics.events_folded.labels(fold="one").inc(3)

    assert samples(metrics)["streams_app_events_folded_total", (("fold", "one"),)] == 3
    assert samples(other)["streams_app_events_folded_total", (("fold", "one"),)] == 0


def test_folding_ratio_is_one_minus_records_per_event(metrics: Metrics) -> None:
    metrics.emitted("one", "quiet", 1, 15, 0)
    metrics.emitted("one", "max_hold", 1, 5, 0)
    metrics.emitted("two", "quiet", 1, 1, 0)
    found = samples(metrics)

    assert found["streams_app_folding_ratio", (("fold", "one"),)] == pytest.approx(0.9)
    assert found["streams_app_folding_ratio", (("fold", "two"),)] == 0
    assert found["streams_app_records_emitted_total", (("fold", "one"), ("reason", "quiet"))] == 1
    assert found["streams_app_records_emitted_total", (("fold", "one"), ("reason", "max_hold"))] == 1


def test_first_misrouted_event_is_reported_once_for_each_fold(metrics: Metrics) -> None:
    is_first = [metrics.is_first_misrouted(fold) for fold in ("one", "one", "two", "one", "two")]

    assert [True, False, True, False, False] == is_first


@given(st.lists(st.integers(0, 30_000)))
def test_bulk_observation_yields_the_same_series(values: list[int]) -> None:
    pages = []
    for is_one_by_one in (True, False):
        registry = CollectorRegistry()
        histogram = Histogram("h", "h", ["fold"], buckets=DELAY_BUCKETS, registry=registry).labels(fold="f")
        if is_one_by_one:
            for value in values:
                histogram.observe(value)
        else:
            observe_all(histogram, values)
        pages.append([line for line in generate_latest(registry).decode().splitlines() if "_created" not in line])

    assert pages[0] == pages[1]
