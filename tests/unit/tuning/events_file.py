"""Files of JSON lines, and their results in tuning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streams_app.fold import Fold
from streams_app.settings import Limits
from streams_app.tuning.columns import Columns
from streams_app.tuning.file import LineReader
from streams_app.tuning.read_counts import ReadCounts

NOW_MS = 1_800_000_000_000

BEGIN_MS = 1_700_000_000_000


class Read:
    """The result of reading a file."""

    def __init__(
        self,
        path: Path,
        *,
        time: str = "ts",
        key: str | None = None,
        limits: Limits | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        **fold: Any,
    ) -> None:
        given = {"name": "f", "source": "s", "group_key": "id", "changed": "names", "quiet_period": "1m"} | fold
        self.columns = Columns(now_ms=NOW_MS)
        self.tally = ReadCounts()
        reader = LineReader(
            Fold(**given),
            limits or Limits(),
            self.columns,
            self.tally,
            time=time,
            key=key,
            from_ms=from_ms,
            to_ms=to_ms,
        )
        reader.read(path)
        self.columns.sort()
        self.advice = reader.advice()

    @property
    def scores(self) -> list[int]:
        return [self.columns.from_ms + int(after_ms) for after_ms in self.columns.after_ms]


def line(ts: Any = BEGIN_MS, **more: Any) -> bytes:
    return json.dumps({"ts": ts, "id": "a", "names": ["x"], **more}).encode()


def written(folder: Path, lines: Sequence[bytes], name: str = "events.jsonl") -> Path:
    path = folder / name
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path
