"""Computes the curve of a fold and its recommendation: what ``streams-app tune`` and the console have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.core.closing import Bounds
from streams_app.folding.store.keys import shard_keys
from streams_app.formatting import escaped, time_text
from streams_app.kafka.patches.frames import ReceivingLoop
from streams_app.quiet_period import QuietPeriod
from streams_app.settings import Settings
from streams_app.tuning.auto_replay import AutoReplay
from streams_app.tuning.columns import CAPACITY, Columns, fold_to_read
from streams_app.tuning.points import Curve, Recommendation
from streams_app.tuning.read_counts import ReadCounts
from streams_app.tuning.recommending import default_windows, recommend
from streams_app.tuning.replay import curve_of
from streams_app.tuning.timestamps import timestamp_faults
from streams_app.tuning.topic import read_topic


class TunedFold(NamedTuple):
    """The curve of a fold with its recommendation.

    Attributes:
        doubt: Why the times of the events do not allow a recommendation; None if they do.
        counts: The records that were read, with those that were rejected.
    """

    curve: Curve
    recommended: Recommendation
    doubt: str | None
    counts: ReadCounts


def columns_for(fold: Fold, now_ms: int, capacity: int = CAPACITY) -> Columns:
    """Return empty columns for the events of a fold, which are decoded with :func:`.fold_to_read`."""
    longest_own_ms = fold.quiet_period_ms if isinstance(fold.quiet_period, QuietPeriod) else None
    return Columns(
        now_ms=now_ms, max_changed=fold.max_changed, reads_details=fold.reads_details, keeps_events=fold.keeps_events,
        longest_own_ms=longest_own_ms, dedupe_ms=None if fold.dedupe_by is None else fold.max_hold_ms, capacity=capacity,
        auto=AutoReplay.of(fold, now_ms),
    )  # fmt: skip


def longest_candidate(fold: Fold) -> tuple[int, str]:
    """Return the longest candidate, in ms, that the settings permit, and the name of the setting."""
    if isinstance(fold.quiet_period, QuietPeriod):
        return fold.quiet_period_ms, "quiet_period.at_most"
    return fold.max_hold_ms, "max_hold"


def curve_of_events(
    app_id: str, fold: Fold, columns: Columns, windows: tuple[int, ...] | None, progress: Callable[[int, int], None]
) -> Curve:
    """Replay the events in columns for each candidate.

    Args:
        windows: Candidates for the quiet period, in ms; None: they are derived from the events.
        progress: As for :func:`.curve_of`.
    """
    if not windows:
        found = default_windows(columns.to_ms - columns.from_ms, columns.gaps(), also_ms=fold.default_quiet_period_ms)
        longest_ms, _ = longest_candidate(fold)
        windows = tuple(quiet_ms for quiet_ms in found if quiet_ms <= longest_ms)
    prefix = shard_keys(app_id, fold.name, fold.source, 0).group_prefix
    bounds = replace(Bounds.of(fold), sessions=True)
    return curve_of(fold.name, columns, bounds, windows, progress, prefix_bytes=len(prefix))


def recommendation_for(
    fold: Fold,
    curve: Curve,
    doubt_of: Callable[[int], str | None],
    *,
    target_ratio: float | None = None,
    max_latency_ms: int | None = None,
) -> tuple[Recommendation, str | None]:
    """Return the recommendation, and why there is none.

    Args:
        doubt_of: Returns why the times of the events do not allow a quiet period to be recommended; None if they do.
    """
    longest_ms, longest_by = longest_candidate(fold)
    if fold.auto_quiet is not None and target_ratio is None and max_latency_ms is None:
        target_ratio = fold.auto_quiet.target_ratio
    found = recommend(curve, target_ratio=target_ratio, max_latency_ms=max_latency_ms, longest_ms=longest_ms, longest_by=longest_by)
    doubt = doubt_of(found.quiet_ms or 0)
    return (Recommendation(None, f"The events do not allow one: {doubt}."), doubt) if doubt else (found, None)


def read_source(
    settings: Settings,
    fold: Fold,
    columns: Columns,
    counts: ReadCounts,
    on_progress: Callable[[ReadCounts], None],
    range_ms: tuple[int | None, int | None],
) -> str:
    """Read the source topic into columns, in an event loop of its own; return the error for the case that they are still empty."""
    from_ms, to_ms = range_ms
    with asyncio.Runner(loop_factory=ReceivingLoop) as runner:
        runner.run(read_topic(settings, fold, columns, counts, from_ms=from_ms, to_ms=to_ms, on_progress=on_progress))
    if counts.read:
        return f"none of the {counts.read:,} records of {fold.source} can be folded by {fold.name}: see the reasons above"
    since = "" if from_ms is None else f" since {time_text(from_ms)}"
    until = "" if to_ms is None else f" until {time_text(to_ms)}"
    return f"there is no event in {fold.source}{since}{until}: try an earlier --from, as in --from -7d, or --from earliest"


def tune_source(
    settings: Settings,
    fold: Fold,
    from_ms: int,
    now_ms: int,
    capacity: int,
    on_reading: Callable[[ReadCounts], None],
    on_replaying: Callable[[int, int], None],
) -> TunedFold:
    """Compute what ``streams-app tune --from`` computes from the source; blocks until it is done, so call it in a thread.

    Args:
        capacity: Maximum number of events in memory; above it, a sample of the groups is used.

    Raises:
        ConfigurationError: The topic does not exist, or has no event of the fold.
        TryAgainError: Kafka or the schema registry does not respond.
    """
    columns, counts = columns_for(fold, now_ms, capacity), ReadCounts()
    advice = read_source(settings, fold_to_read(fold), columns, counts, on_reading, (from_ms, None))
    if not columns.events:
        raise ConfigurationError([escaped(advice)])
    curve = curve_of_events(settings.app_id, fold, columns, None, on_replaying)
    recommended, doubt = recommendation_for(fold, curve, partial(timestamp_faults, columns, counts, "events"))
    return TunedFold(curve, recommended, doubt, counts)
