"""What the demo shows while it runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

LINE_EVERY_MS: Final = 2_000


@dataclass(slots=True)
class Snapshot:
    """One look at everything.

    Attributes:
        elapsed_ms: Since the load began.
        phase: What is going on.
        events: Raw events produced.
        events_per_second: During the last second or so.
        open_groups: Groups not yet emitted.
        lag_events: Produced and not yet folded.
        records: Folded records.
        events_folded: Events in those records.
        values_written: Values the read store has taken.
        latest: The newest folded records.
    """

    elapsed_ms: int = 0
    phase: str = ""
    events: int = 0
    events_per_second: float = 0.0
    open_groups: int = 0
    lag_events: int = 0
    records: int = 0
    events_folded: int = 0
    values_written: int = 0
    latest: list[dict[str, Any]] = field(default_factory=list)

    @property
    def folding_ratio(self) -> float:
        """1 - records / events folded into them."""
        return 1 - self.records / self.events_folded if self.events_folded else 0.0

    @property
    def writes_saved(self) -> float:
        """Against one read-store write per event."""
        return 1 - self.values_written / self.events if self.events else 0.0


class View:
    """Shows snapshots."""

    def __init__(self, console: Console, *, group_field: str, changed: str) -> None:
        self.console = console
        self._group_field = group_field
        self._changed = changed
        self._live: Live | None = None
        self._line_at_ms = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the numbers move."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=4, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def step(self, text: str) -> None:
        """One thing done."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def show(self, now: Snapshot) -> None:
        """The newest figures."""
        if self._live is not None:
            self._live.update(self._table(now))
        elif now.elapsed_ms >= self._line_at_ms:
            self._line_at_ms = now.elapsed_ms + LINE_EVERY_MS
            self.step(self._line(now))

    def _line(self, now: Snapshot) -> str:
        return (
            f"{now.elapsed_ms / 1000:5.0f} s  {now.phase:<8}  events {now.events:>8,} ({now.events_per_second:>6,.0f}/s)  "
            f"open groups {now.open_groups:>5,}  folded records {now.records:>6,}  "
            f"folding ratio {share(now.folding_ratio, now.records):>6}  "
            f"read-store writes {now.values_written:>6,} ({share(now.writes_saved, now.values_written)} saved)"
        )

    def _table(self, now: Snapshot) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim", min_width=24)
        table.add_column(min_width=60, no_wrap=True)
        table.add_row("", Text(f"{now.elapsed_ms / 1000:.0f} s  {now.phase}", style="bold"))
        table.add_row("raw events", f"{now.events:,}   ({now.events_per_second:,.0f} a second, {now.lag_events:,} not yet folded)")
        table.add_row("open groups", f"{now.open_groups:,}")
        table.add_row("folded records", Text(f"{now.records:,}", style="bold green"))
        table.add_row("folding ratio", Text(share(now.folding_ratio, now.records), style="bold green"))
        table.add_row(
            "read-store writes",
            f"{now.values_written:,}   ({share(now.writes_saved, now.values_written)} saved against one per event)",
        )
        table.add_row("", "")
        for record in reversed(now.latest):
            table.add_row("", Text(describe(record, self._group_field, self._changed), style="cyan"))
        return table


def share(ratio: float, of: int) -> str:
    """A percentage; nothing where it is of nothing."""
    return f"{ratio:.1%}" if of else "-"


def describe(record: dict[str, Any], group_field: str, changed: str) -> str:
    """A folded record as the article puts it: ``account_1: likes, shares; 37 events, quiet for 3 s``."""
    fold = record["fold"]
    names = ", ".join(record[changed])
    return f"{record.get(group_field)}: {names}  ({fold['events']} events in one record, reason {fold['reason']})"
