"""Reads the metrics of running workers over HTTP, for commands."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.fold import Fold
from streams_app.formatting import escaped
from streams_app.settings import HttpSettings, Settings
from streams_app.tuning.live import LiveMetrics, combined, live_curve, live_metrics_in, live_windows
from streams_app.tuning.points import Curve, Recommendation
from streams_app.tuning.recommending import recommend

ANSWER_SECONDS: Final = 3.0
UNAUTHORIZED: Final = 401
ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Listen addresses that mean all interfaces, each with the address to which a client on this machine connects."""

_BUILD_INFO: Final = re.compile(r'^streams_app_build_info\{(?:.*?app_id="([^"]*)")?', re.MULTILINE)
"""Metric that names the application of a worker; older workers omit the name."""


class _Health(msgspec.Struct):
    ready: bool
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """The metrics of one worker as read over HTTP, or why the request failed.

    Attributes:
        text: The metrics; None: the request failed.
        fault: Why the request failed, as the end of a sentence that begins with the address; empty if it did not fail.
    """

    url: str
    text: str | None
    fault: str = ""


def usual_url(http: HttpSettings) -> str | None:
    """Return the address of a worker with these settings on this machine; None if the worker listens on any free port."""
    host = ANYWHERE.get(http.host, http.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{http.port}" if http.port else None


def metrics_url(url: str) -> str:
    """Return the URL of the metrics of a worker, given as ``host:8080``, ``http://host:8080/``, or this URL itself."""
    whole = url if "://" in url else f"http://{url}"
    return whole.rstrip("/").removesuffix("/metrics") + "/metrics"


def page_of(url: str, text: str, app_id: str) -> Page:
    """Return the metrics in the answer of a worker; a fault if another application, or no worker, has answered (pure)."""
    found = _BUILD_INFO.search(text)
    if found is None:
        return Page(url, None, "is not a worker of streams_app")
    if found[1] not in (None, app_id):
        return Page(url, None, f"belongs to the application {escaped(found[1])}, not to {app_id}")
    return Page(url, text)


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a worker reports at ``/health/ready``.

    Attributes:
        fault: Why the request failed, as the end of a sentence that begins with the address; empty if it did not fail.
    """

    is_ready: bool
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    fault: str = ""


async def readiness(urls: Sequence[str]) -> list[Readiness]:
    """Ask workers concurrently whether they are ready; return one result for each address, in the order of ``urls``."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)) as session:
        return await asyncio.gather(*(_readiness(session, url) for url in urls))


async def _readiness(session: aiohttp.ClientSession, url: str) -> Readiness:
    try:
        async with session.get(metrics_url(url).removesuffix("/metrics") + "/health/ready", allow_redirects=False) as answer:
            found = msgspec.json.decode(await answer.read(), type=_Health)
    except TimeoutError:
        return Readiness(False, fault=f"does not answer within {ANSWER_SECONDS:.0f} s")
    except msgspec.MsgspecError:
        return Readiness(False, fault="is not a worker of streams_app")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Readiness(False, fault=f"does not answer ({_cause(error)})")
    return Readiness(found.ready, found.reasons, found.remarks)


async def pages(settings: Settings, urls: Sequence[str]) -> list[Page]:
    """Read the metrics of workers concurrently; return one result for each address, in the order of ``urls``.

    If a request failed, its result has the reason in :attr:`Page.fault`. A request ends after :data:`ANSWER_SECONDS`.
    """
    http = settings.http
    headers = {"Authorization": f"Bearer {http.token}"} if http.token else {}
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        return await asyncio.gather(*(_page(session, url, settings.app_id) for url in urls))


async def _page(session: aiohttp.ClientSession, url: str, app_id: str) -> Page:
    try:
        async with session.get(metrics_url(url), allow_redirects=False) as answer:
            if answer.status == UNAUTHORIZED:
                return Page(url, None, "wants another token: http.token_file must be the worker's")
            if not answer.ok:
                return Page(url, None, f"answers with status {answer.status}")
            text = await answer.text(errors="replace")
    except TimeoutError:
        return Page(url, None, f"does not answer within {ANSWER_SECONDS:.0f} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Page(url, None, f"does not answer ({_cause(error)})")
    return page_of(url, text, app_id)


def _cause(error: Exception) -> str:
    """Return why a connection failed, in the words of the operating system if it has any."""
    number = (
        (error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error).errno if isinstance(error, OSError) else None
    )
    return os.strerror(number).lower() if number and number > 0 else type(error).__name__


def counted_windows(texts: Sequence[str], fold: Fold, now_ms: int) -> tuple[Curve, Recommendation]:
    """Return what each quiet period up to ``max_hold`` would have folded, by the gaps that workers have counted (pure).

    Args:
        texts: Metrics of workers. Those of another version, and those without the fold, are left out.

    Raises:
        TryAgainError: No worker has folded an event of the fold yet.
        ConfigurationError: The workers use different buckets, because they are of different versions.
    """
    found = [metrics for text in texts if (metrics := _gaps_in(text, fold)) is not None]
    if not sum(metrics.events for metrics in found):
        raise TryAgainError("no worker that answers has folded an event of it since its start")
    present_ms = fold.default_quiet_period_ms
    try:
        metrics = combined(found, present_ms)
    except ValueError as error:
        raise ConfigurationError([f"the workers have different versions: {error}"]) from error
    windows = [quiet_ms for quiet_ms in live_windows(metrics, present_ms) if quiet_ms <= fold.max_hold_ms] or [present_ms]
    curve = live_curve(fold.name, metrics, windows, now_ms)
    return curve, recommend(curve, longest_ms=fold.max_hold_ms)


def _gaps_in(text: str, fold: Fold) -> LiveMetrics | None:
    """Return the metrics of a fold; only its own lines are parsed, because the parser takes 60 µs a line."""
    label = f'fold="{fold.name}"'
    lines = [line for line in text.split("\n") if label in line or line.startswith("process_start_time_seconds ")]
    try:
        return live_metrics_in("\n".join(lines) + "\n", fold.name)
    except (ValueError, KeyError):
        return None
