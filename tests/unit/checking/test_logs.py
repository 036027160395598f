"""Findings of `check` about logs that are not the logs that were read."""

from __future__ import annotations

from streams_app.checking.finding import Level
from streams_app.checking.logs import ComparedReader, ReaderPosition, recreations, went_back
from streams_app.delivery.batch import TP

HERE = TP("orders", 1)


def test_reader_that_needs_a_reset_is_an_error_with_its_command() -> None:
    (finding,) = recreations(ComparedReader("subscriber ship", "reset it"), {HERE: ReaderPosition("old", 8)}, {"orders": "new"})

    assert (Level.ERROR, "reset it") == (finding.level, finding.advice)
    assert "orders-1 was deleted and created again: subscriber ship has read another log" in finding.text


def test_reader_that_restarts_by_itself_is_a_warning() -> None:
    (finding,) = recreations(ComparedReader("read store main"), {HERE: ReaderPosition("old", 8)}, {"orders": "new"})

    assert Level.WARNING is finding.level


def test_unchanged_log_and_log_without_stored_progress_are_no_finding() -> None:
    read = {HERE: ReaderPosition("same", 8), TP("orders", 2): ReaderPosition("", 8)}

    assert [] == list(recreations(ComparedReader("fold sums", "reset it"), read, {"orders": "same"}))


def test_log_that_went_back_is_reported_with_the_missing_offsets() -> None:
    finding = went_back(ComparedReader("fold sums", "reset it"), HERE, 90, ReaderPosition("same", 100))

    assert Level.WARNING is finding.level
    assert "the broker has lost what fold sums had read from offset 90 to 99" in finding.text
    assert "made again" not in finding.text
