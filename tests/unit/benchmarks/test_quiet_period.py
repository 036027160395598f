"""The comparison of quiet periods: its streams, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
import pytest

from benchmarks.quiet_period import comparison
from benchmarks.quiet_period.__main__ import recorded_stream
from benchmarks.quiet_period.comparison import GOALS, Comparison, compare
from benchmarks.quiet_period.shapes import BEGIN_MS, DAY_MS, HOUR_MS, JUMP_MS, SHAPES, SPAN_MS, VARIANTS, Stream, stream
from streams_app.folding.core.auto_quiet import AutoQuiet
from streams_app.tuning.points import Point


def records(events: Stream, periods_ms: list[int]) -> int:
    """Count records event by event: a gap longer than the quiet period of the event before it begins another record."""
    last: dict[int, tuple[int, int]] = {}
    count, score_ms = 0, 0
    for stamp_ms, group, quiet_ms in zip(events.stamps_ms.tolist(), events.groups.tolist(), periods_ms, strict=True):
        score_ms = max(score_ms, stamp_ms)
        before_ms, period_ms = last.get(group, (-SPAN_MS, 0))
        count += score_ms - before_ms > period_ms
        last[group] = score_ms, quiet_ms
    return count


@pytest.mark.parametrize("shape", SHAPES)
def test_stream_depends_on_its_seed_alone_and_lies_within_its_span(shape: str) -> None:
    first, same, other = stream(shape, "plain", 7), stream(shape, "plain", 7), stream(shape, "plain", 8)

    assert np.array_equal(first.stamps_ms, same.stamps_ms)
    assert np.array_equal(first.groups, same.groups)
    assert not np.array_equal(first.groups[:1_000], other.groups[:1_000]) or shape == "wide"
    assert (np.diff(first.stamps_ms) >= 0).all()
    assert BEGIN_MS <= first.stamps_ms[0]
    assert first.stamps_ms[-1] < BEGIN_MS + SPAN_MS


def _gaps(events: Stream, day: int) -> list[int]:
    """Return the gaps within groups on one day."""
    is_day = (events.stamps_ms - BEGIN_MS) // DAY_MS == day
    order = np.lexsort((events.stamps_ms[is_day], events.groups[is_day]))
    stamps_ms, groups = events.stamps_ms[is_day][order], events.groups[is_day][order]
    gaps: list[int] = np.diff(stamps_ms)[np.diff(groups) == 0].tolist()
    return gaps


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "plain"])
def test_variant_differs_from_the_plain_stream(variant: str) -> None:
    plain, other = stream("typing", "plain", 7), stream("typing", variant, 7)
    longest_ms = [int(np.abs(np.diff(one.stamps_ms)).max()) for one in (plain, other)]
    hours = [np.bincount((one.stamps_ms - BEGIN_MS) // HOUR_MS, minlength=72) for one in (plain, other)]
    match variant:
        case "silence":
            is_seen = longest_ms[0] < HOUR_MS < 10 * HOUR_MS <= longest_ms[1]
        case "clock jump":
            is_seen = longest_ms[0] < JUMP_MS - 120_000 <= longest_ms[1]
        case "rush":
            is_seen = 3 * hours[1].mean() < hours[1].max()
        case "day-night":
            is_seen = 3 * hours[1][22:26].mean() < hours[1][34:38].mean()
        case "heavy group":
            is_seen = bool(3 * (other.groups == -1).sum() > len(other.groups))
        case _:
            medians = [[float(np.median(_gaps(one, day))) for day in (0, 2)] for one in (plain, other)]
            is_seen = medians[0][1] < 1.5 * medians[0][0] and 2 * medians[1][0] < medians[1][1]

    assert is_seen


def test_folding_ratio_of_a_changing_quiet_period_is_that_of_a_count_event_by_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "HOLD_MS", SPAN_MS)
    whole = stream("bursts", "clock jump", 7)
    jump = int(np.argmax(np.diff(whole.stamps_ms)))
    events = Stream(whole.stamps_ms[jump - 8_000 : jump + 4_000], whole.groups[jump - 8_000 : jump + 4_000])
    begin_ms = int(events.stamps_ms[0])
    auto, periods_ms = AutoQuiet(GOALS["knee"]), []
    for stamp_ms, group in zip(events.stamps_ms.tolist(), events.groups.tolist(), strict=True):
        auto.observe(b"sgroup_%d" % group, stamp_ms)
        periods_ms.append(auto.quiet_ms)
    found = compare(events, begin_ms, GOALS["knee"])
    later = comparison._from(events, begin_ms + HOUR_MS)

    assert 1 - records(later, periods_ms[-len(later.groups) :]) / len(later.groups) == pytest.approx(found.auto.ratio)
    assert len(set(periods_ms)) > 1


def test_loss_is_counted_from_the_target_if_the_best_exceeds_it() -> None:
    best, worse = (Point(1_000, 10, ratio, *[None] * 7) for ratio in (0.97, 0.94))

    assert pytest.approx(0.01) == Comparison(best, worse, best, worse, 0.0, 0, 0.95).loss("auto")
    assert pytest.approx(0.03) == Comparison(best, worse, best, worse, 0.0, 0).loss("auto")
    assert Comparison(best, worse, best, worse, 0.0, 0, 0.95).loss("daily") < 0


def test_recorded_file_becomes_a_stream_in_the_order_of_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    stamps_ms = [BEGIN_MS, BEGIN_MS + 9_000, BEGIN_MS + 4_000]
    lines = [{"group": group, "at": at_ms} for group, at_ms in zip("aba", stamps_ms, strict=True)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", "utf-8")
    found = recorded_stream(path, "at", "group")

    assert stamps_ms == found.stamps_ms.tolist()
    assert found.groups[0] == found.groups[2] != found.groups[1]
    with pytest.raises(click.ClickException, match="no event with the fields time and group"):
        recorded_stream(path, "time", "group")
