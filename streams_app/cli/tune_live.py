"""``streams-app tune --live``: computes the folding ratio for each candidate quiet period from the metrics of workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.fold import Fold
from streams_app.formatting import duration_text, escaped
from streams_app.operations.worker_pages import Page, pages, usual_url
from streams_app.quiet_period import QuietPeriod
from streams_app.settings import Settings
from streams_app.tuning.live import LiveMetrics, combined, live_curve, live_metrics_in, live_windows, widest_interval

if TYPE_CHECKING:
    from streams_app.tuning.points import Curve


def curve_of_workers(settings: Settings, fold: Fold, urls: Sequence[str], windows: Sequence[int] | None, now_ms: int) -> Curve:
    """Compute the folding ratio for each candidate quiet period from the gaps that workers count. Kafka is not read.

    Remarks on the result are printed to stderr.

    Args:
        urls: URLs of workers; empty: the settings determine the URL of the worker on this machine.
        windows: Candidates for the quiet period, in ms; None: the bounds of the histogram.

    Raises:
        TryAgainError: No worker answers.
        ConfigurationError: No worker has the fold, no worker has folded an event of it, the workers have different versions, or
            neither ``urls`` nor the settings name a worker.
        click.UsageError: A candidate is below the first or above the last finite bound of the histogram.
    """
    usual = usual_url(settings.http)
    addresses = list(urls) or ([usual] if usual else [])
    if not addresses:
        raise ConfigurationError(["http.port is 0: name the workers with --url; their logs say where (http listens url=...)"])
    answers = asyncio.run(pages(settings, addresses))
    remarks = [f"{page.url} {page.fault}; what it has folded is missing" for page in answers if page.text is None]
    if len(remarks) == len(answers):
        faults = "; ".join(f"{page.url} {page.fault}" for page in answers)
        raise TryAgainError(f"no worker answers: {faults}. Start one, or name those that run with --url http://HOST:PORT")
    workers = [metrics for page in answers if (metrics := _live_metrics(page, fold)) is not None]
    if not workers:
        raise ConfigurationError(
            [f"no worker that was asked has fold {fold.name!r} ({', '.join(addresses)}): restart it with these settings"]
        )
    try:
        metrics = combined(workers, fold.default_quiet_period_ms)
    except ValueError as error:
        raise ConfigurationError(
            [
                f"the workers have different versions, because {error}: "
                "name those of one version with --url, or wait until all are restarted"
            ]
        ) from error
    if not metrics.events:
        raise ConfigurationError(
            [f"no event of fold {fold.name!r} was folded since the workers started: wait, or read the topic, without --live"]
        )
    if windows is not None:
        _check(windows, metrics)
    curve = live_curve(fold.name, metrics, windows or live_windows(metrics, fold.default_quiet_period_ms), now_ms)
    if not urls:
        remarks.append(f"by the worker at {addresses[0]} alone; --url, several times if need be, names others")
    remarks += _not_considered(fold)
    doubt = widest_interval(metrics, curve)
    if doubt is not None:
        remarks.append(
            f"{duration_text(doubt[0])} lies between two bounds of the histogram: its ratio may be off by up to {doubt[1]:.2%}"
        )
    for remark in remarks:
        click.echo(f"note: {escaped(remark)}", err=True)
    return curve


def _not_considered(fold: Fold) -> list[str]:
    """Return remarks about settings of the fold that the curve ignores, because workers do not count their effect."""
    remarks = [
        "only silence is considered, not max_hold, the bounds on contents, close_when and leading; "
        "latency and memory are not known live"
    ]
    if isinstance(fold.quiet_period, QuietPeriod):
        remarks.append("computed as if X were the quiet period after every event: workers do not count which events decide it")
    if fold.auto_quiet is not None:
        remarks.append("what a quiet period that sets itself gives is not known live: read the topic, without --live")
    if fold.leading:
        remarks.append("with leading = true, each record of several events is two records: an early one, and one of the rest")
    return remarks


def _live_metrics(page: Page, fold: Fold) -> LiveMetrics | None:
    if page.text is None:
        return None
    try:
        return live_metrics_in(page.text, fold.name)
    except (ValueError, KeyError) as error:
        raise ConfigurationError([f"the worker at {page.url} is of another version: it does not report gaps"]) from error


def _check(windows: Sequence[int], metrics: LiveMetrics) -> None:
    shortest, longest = int(metrics.gaps[0][0]), int(metrics.gaps[-2][0])
    wrong = [duration_text(quiet_ms) for quiet_ms in windows if not shortest <= quiet_ms <= longest]
    if wrong:
        raise click.UsageError(
            f"--windows {', '.join(wrong)}: workers distinguish gaps from {duration_text(shortest)} to {duration_text(longest)}; "
            "without --live the topic is read, and any window will do"
        )
