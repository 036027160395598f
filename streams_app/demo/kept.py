"""Saves the first events of a demo in a file, with settings of its fold, for ``streams-app tune``.

At its end, the demo shows a ``tune`` command. The command reads this file, because the broker of the demo is removed. The numbers
that the demo shows come from the same file and the same code. The settings omit max_hold, which is short in the demo only so that
records appear soon.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from streams_app.demo.load import Update
from streams_app.demo.stage import FOLD, MAX_HOLD, QUIET_PERIOD
from streams_app.formatting import percentage
from streams_app.settings import Settings

FOLDER: Final = Path(".cache") / "streams-app-demo"
"""Folder of the saved files, in the current directory. After ``make demo`` it is in the checkout; ``make clean`` removes it."""

EVENTS: Final = FOLDER / "events.jsonl"
SETTINGS: Final = FOLDER / "streams.toml"

MAX_EVENTS: Final = 200_000
"""Maximum number of events in the file, which then has some 25 MB and is read within two seconds at the end."""

TIME: Final = "happened_ms"
WINDOWS_MS: Final = (2_000, 10_000, 60_000)

TEMPLATE: Final = """\
# The fold of the last demo, for `streams-app tune`. In the demo max_hold is {max_hold}.
app_id = "demo"

[folds.{fold}]
source = "post-metric-updated"
group_key = {group_key}
changed = {changed}
quiet_period = "{quiet_period}"
"""


class SavedEvents(NamedTuple):
    """Events that a demo has saved.

    Attributes:
        lines: Lines for display: the folding ratio of some quiet periods, or why nothing could be saved.
        command: Words of the ``tune`` command that reads them; empty: nothing was saved.
    """

    lines: list[str]
    command: list[str]


class FirstEvents:
    """File with the first events of a demo, for :mod:`streams_app.tuning`, in a folder that is removed with the demo."""

    def __init__(self, folder: Path, *, group_key: str, changed: str) -> None:
        self._events = folder / "events.jsonl"
        self._settings = folder / "tune.toml"
        self._settings.write_text(
            TEMPLATE.format(
                fold=FOLD, group_key=json.dumps(group_key), changed=json.dumps(changed), quiet_period=QUIET_PERIOD,
                max_hold=MAX_HOLD,
            ),
            "utf-8",
        )  # fmt: skip
        self._file = self._events.open("wb")
        self._count = 0

    def add(self, updates: Sequence[Update], began_ms: int) -> None:
        """Append updates to the file of events, each with its time; after :data:`MAX_EVENTS` in total, further ones are ignored.

        ``began_ms`` is the wall clock at the beginning of the load, to which the time of each update is added.
        """
        taken = updates[: MAX_EVENTS - self._count]
        self._count += len(taken)
        self._file.write(b"".join(with_time(update.value, began_ms + int(update.at_ms)) for update in taken))

    def close(self) -> None:
        self._file.close()

    def save(self) -> SavedEvents:
        """Copy the files to :data:`FOLDER`. Without usable events, nothing is copied."""
        self.close()
        shares = self._shares()
        if not shares:
            return SavedEvents([], [])
        shares_folded = ", ".join(f"{quiet_ms // 1000} s {share}" for quiet_ms, share in zip(WINDOWS_MS, shares, strict=True))
        of = f"the first {MAX_EVENTS:,}" if self._count == MAX_EVENTS else "these"
        found = [
            f"quiet period?      {shares_folded.replace(' s ', ' s would have folded ', 1)} of {of} events",
            f"                   (without max_hold; in this demo it was {QUIET_PERIOD}, and max_hold {MAX_HOLD})",
        ]
        try:
            self._copy()
        except OSError as error:
            return SavedEvents([*found, f"                   the events could not be kept in {FOLDER}: {error.strerror}"], [])
        return SavedEvents(found, [*program(), *tune_arguments()])

    def _shares(self) -> list[str]:
        # Imported here, because only tuning needs numpy.
        from streams_app.folding.core.closing import Bounds
        from streams_app.tuning.columns import Columns
        from streams_app.tuning.file import LineReader
        from streams_app.tuning.read_counts import ReadCounts
        from streams_app.tuning.replay import curve_of

        settings = Settings.load(self._settings, {})
        fold = settings.fold(FOLD)
        columns = Columns(now_ms=2**53)
        LineReader(fold, settings.limits, columns, ReadCounts(), time=TIME).read(self._events)
        if not columns.events:
            return []
        return [percentage(point.ratio) for point in curve_of(FOLD, columns, Bounds.of(fold), WINDOWS_MS).points]

    def _copy(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for path, name in ((self._events, EVENTS.name), (self._settings, SETTINGS.name)):
            # Replaced atomically, because another demo may end at the same time.
            whole = FOLDER / f"{name}.{os.getpid()}"
            shutil.copyfile(path, whole)
            whole.replace(FOLDER / name)


def tune_arguments() -> list[str]:
    """Return the arguments of ``streams-app`` that draw the curve of the last demo in the current directory."""
    return ["tune", "--config", str(SETTINGS), "--file", str(EVENTS), "--time", TIME]


def with_time(value: bytes, at_ms: int) -> bytes:
    """Return a line with the field ``happened_ms`` added to a JSON object.

    ``{}``, and values that are no object, are not changed, so that ``tune`` rejects them as the fold of the demo has done.
    """
    event = value.strip()
    if event.startswith(b"{") and event[1:].lstrip()[:1] != b"}":
        event = b'{"%b":%d,%b' % (TIME.encode(), at_ms, event[1:])
    return event + b"\n"


def program() -> list[str]:
    """Return the words of the command that runs ``streams-app`` from the current directory."""
    called = Path(sys.argv[0])
    if called.name != "streams-app":
        return [_from_here(sys.executable), "-m", "streams_app"]
    found = shutil.which(called.name)
    return [called.name] if found is not None and Path(found).resolve() == called.resolve() else [_from_here(sys.argv[0])]


def _from_here(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
