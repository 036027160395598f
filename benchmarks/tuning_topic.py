"""``streams-app tune`` on a topic of ten million events: the whole command, beside bare reading of the same topic.

``python -m benchmarks.tuning_topic ARGUMENTS`` runs ``streams-app tune ARGUMENTS`` and prints its peak memory to stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import topics
from benchmarks.finding import Finding, source_topic
from benchmarks.loads import LOADS, PARTITIONS, QUIET_MS, SPAN_MS
from benchmarks.processes import memory_mb
from benchmarks.servers import Servers
from benchmarks.tuning import LOADS as REPLAYED
from streams_app.cli import run
from tests.servers.cache import ROOT

EVENTS: Final = 10_000_000
_RATE: Final = re.compile(r"events read, ([\d,]+) a second")


async def tuned(servers: Servers, folder: Path, scale: float) -> Finding:
    """Read the hot load, replay it for the default candidates, and compare the reading with bare reading."""
    events = round(EVENTS * scale)
    async with source_topic(servers, "tune") as source:
        begin_ms = time.time_ns() // 1_000_000 - SPAN_MS
        await topics.fill(servers.bootstrap, source, LOADS["hot"].generate(events / LOADS["hot"].events, PARTITIONS), begin_ms)
        config = folder / "tune.toml"
        config.write_text(
            f'app_id = "bench"\n[kafka]\nbootstrap_servers = "{servers.bootstrap}"\n[folds.tuned]\nsource = "{source}"\n'
            f'group_key = "account_id"\nchanged = "metrics"\nquiet_period = "{QUIET_MS}ms"\n'
        )
        bare = json.loads((await _ran("benchmarks.bare", servers.bootstrap, source, str(events)))[0])
        began = time.perf_counter()
        out, err = await _ran("benchmarks.tuning_topic", "--config", str(config), "--json")
        seconds = time.perf_counter() - began
    curve = json.loads(out)
    rates = [int(rate.replace(",", "")) for rate in _RATE.findall(err)]
    bare_rate = events / bare["seconds"]
    finding = Finding(
        "tune, ten million events of a topic" if scale == 1 else "tune, events of a topic",
        {
            "events": events,
            "groups": curve["groups"],
            "candidates": len(curve["curve"]),
            "seconds_of_the_whole_command": round(seconds, 1),
            "events_per_second_of_the_whole_command": round(events / seconds),
            "events_per_second_read": rates[-1] if rates else None,
            "bare_events_per_second": round(bare_rate),
            "ratio_to_bare": round(rates[-1] / bare_rate, 2) if rates else None,
            "peak_rss_mb": float(err.split()[-1]),
        },
    )
    if curve["events"] != events or curve["sample"]:
        finding.faults.append(f"{curve['events']:,} events were read, {events:,} expected, sample {curve['sample']}")
    return finding


async def replayed(scale: float) -> list[Finding]:
    """Replay each load of :mod:`benchmarks.tuning` in a separate process."""
    found = []
    for load, about in REPLAYED.items():
        out, _ = await _ran("benchmarks.tuning", "--one", load, str(round(EVENTS * scale)))
        figures: dict[str, Any] = json.loads(out)
        found.append(
            Finding(f"tune, {load}: {about}", {name: value for name, value in figures.items() if name not in ("load", "records")})
        )
    return found


async def _ran(module: str, *arguments: str) -> tuple[str, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments, stdout=pipe, stderr=pipe, cwd=ROOT)
    out, err = (text.decode() for text in await process.communicate())
    if process.returncode:
        raise RuntimeError(f"{module} ended with exit code {process.returncode}: {err}")
    return out, err


def main() -> None:
    """Run the command."""
    code = run(["tune", *sys.argv[1:]])
    print(f"peak_rss_mb {memory_mb(os.getpid(), 'VmHWM') or 0:.0f}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
