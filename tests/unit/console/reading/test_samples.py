"""The metrics that the console shows, from the answer of a worker."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streams_app.console.reading.samples import samples_in
from streams_app.health.metrics import Metrics
from streams_app.settings import Settings

FOLD = {"name": "f", "source": "s", "group_key": "k", "changed": "c", "quiet_period": "1m"}

PAGE = """\
# HELP streams_app_open_groups Open groups.
# TYPE streams_app_open_groups gauge
streams_app_open_groups{fold="a"} 3.0
streams_app_open_groups{fold="b"} 4.0
# TYPE streams_app_emit_delay_seconds histogram
streams_app_emit_delay_seconds_bucket{fold="a",le="0.1"} 1.0
streams_app_emit_delay_seconds_count{fold="a"} 2.0
streams_app_emit_delay_seconds_sum{fold="a"} 0.5
streams_app_records_emitted_total{fold="a",reason="quiet"} 5.0
streams_app_records_emitted_total{fold="a",reason="max_hold"} 6.0
streams_app_build_info{app_id="demo",version="0.1.0"} 1.0
process_resident_memory_bytes 1e+08
python_gc_objects_collected_total{generation="0"} 9.0
"""


def test_values_are_found_by_name_and_labels() -> None:
    samples = samples_in(PAGE)

    assert (7, 3, 11) == (
        samples.total("open_groups"), samples.total("open_groups", fold="a"), samples.total("records_emitted_total", fold="a")
    )  # fmt: skip
    assert {"quiet": 5, "max_hold": 6} == samples.by("records_emitted_total", "reason")
    assert ("0.1.0", 1e8) == (samples.label("build_info", "version"), samples.total("process_resident_memory_bytes"))
    assert (0.5, None) == (samples.total("emit_delay_seconds_sum"), samples.total("nothing"))


def test_buckets_and_metrics_that_are_not_shown_are_left_out() -> None:
    names = {name for name, _ in samples_in(PAGE).values}

    assert not {name for name in names if "bucket" in name or name.startswith("python")}


def test_escapes_in_labels_are_read_as_prometheus_writes_them() -> None:
    page = 'streams_app_log_went_back_events_total{name="a\\\\b\\"c\\nd,e=\\"f\\""} 1.0'

    assert {'a\\b"c\nd,e="f"': 1.0} == samples_in(page).by("log_went_back_events_total", "name")


def test_values_equal_those_of_the_parser_of_prometheus() -> None:
    metrics = Metrics(Settings.model_validate({"app_id": "a", "folds": [FOLD]}))
    metrics.records_emitted.labels(fold="f", reason="quiet").inc(3)
    page = metrics.exposition().decode()
    found = samples_in(page).values
    expected = {
        (sample.name.removeprefix("streams_app_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("streams_app_") and not sample.name.endswith(("_bucket", "_created"))
    }

    assert {key: str(value) for key, value in expected.items()} == {
        key: str(value) for key, value in found.items() if not key[0].startswith("process_")
    }


@pytest.mark.parametrize("page", ["", "\x00\xff", "streams_app_open_groups{fold=", "<html>", 'streams_app_open_groups{fold="a"} x'])
def test_page_that_is_not_of_a_worker_has_no_values(page: str) -> None:
    assert {} == samples_in(page).values
