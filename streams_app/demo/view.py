"""Text that the demo displays: while it runs, on a terminal in place, otherwise as plain lines; at the end, its result."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streams_app.formatting import CUT, counted, cut, shown, shown_key

LINE_EVERY_MS: Final = 2_000
LABELS_WIDTH: Final = 19
LEAST_KEY: Final = 12
LEAST_NAMES: Final = 10
_LABEL: Final = re.compile(r" *\S+( \S+)*  +| *")
"""The label of a line, and the spaces after it; or the indentation of a line without a label."""


@dataclass(slots=True)
class Snapshot:
    """Numbers and newest folded records of the demo at one moment, for display.

    Attributes:
        phase: Current phase: ``load``, ``silence`` or ``done``; empty in the summary.
        events_per_second: Rate of produced events over about the last second.
        lag_events: Number of produced events that are not folded yet.
        journal_received: Size of the keys and values of all produced events, in bytes.
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
    recomputed: int = 0
    retried: int = 0
    journaled: int = 0
    journal_received: int = 0
    journal_kept: int = 0

    @property
    def folding_ratio(self) -> float:
        """Share of events that folding saved: 1 - number of records / number of events in them; 0 without records."""
        return 1 - self.records / self.events_folded if self.events_folded else 0.0

    @property
    def writes_saved(self) -> float:
        """Share of read-store writes that folding saved, compared with one write for each event; 0 without events."""
        return 1 - self.values_written / self.events if self.events else 0.0


class View:
    """Displays snapshots of the demo. On a terminal, the display is updated in place: five lines, or a table if ``is_verbose``."""

    def __init__(self, console: Console, *, group_field: str, changed: str, is_verbose: bool = False) -> None:
        self.console = console
        self._is_verbose = is_verbose
        self._group_field = group_field
        self._changed = changed
        self._live: Live | None = None
        self._line_at_ms = 0
        self._last_line = 0, 0  # elapsed ms and number of events at the previous line

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show snapshots in place during the ``with`` block, if the output is a terminal."""
        if not self.console.is_terminal:
            yield
            return
        self._live = live = Live(console=self.console, refresh_per_second=4, transient=True)
        live.start()
        try:
            yield
        finally:
            self._live = None
            with suppress(OSError):  # the demo may end because the terminal was closed
                live.stop()

    def step(self, text: str) -> None:
        """Print lines about a step of the demo. A terminal gets lines that fit into it; a file gets them unchanged."""
        lines = text.split("\n")
        if self.console.is_terminal:
            lines = [part for line in lines for part in wrapped(line, self.console.width)]
        self.console.print(Text("\n".join(lines)), soft_wrap=True)  # Text, because rich reads a string as markup

    def command(self, label: str, words: Sequence[str], remark: str = "") -> None:
        """Print a shell command to be copied, after its label; if it does not fit into the terminal, on lines of its own.

        The remark follows the command, or the label if the command is on lines of its own.
        """
        line = f"{label}{shlex.join(words)}{remark}"
        if not self.console.is_terminal or cell_len(line) <= self.console.width:
            self.console.print(Text(line), soft_wrap=True)
            return
        lines = [f"{label}{remark.strip()}".rstrip(), *command_lines(words, self.console.width)]
        self.console.print(Text("\n".join(lines)), soft_wrap=True)

    def show(self, now: Snapshot) -> None:
        """Show a snapshot in place on a terminal. Otherwise, print it as a line, but at most one line every 2 s."""
        if self._live is not None:
            self._live.update(self.picture(now) if self._is_verbose else self.story(now))
        elif now.elapsed_ms >= self._line_at_ms:
            self._line_at_ms = now.elapsed_ms + LINE_EVERY_MS
            self.step(self._line(now))

    def _line(self, now: Snapshot) -> str:
        (before_ms, before), self._last_line = self._last_line, (now.elapsed_ms, now.events)
        # The rate since the previous line, so that rate and number of events agree.
        rate = (now.events - before) * 1000 / max(1, now.elapsed_ms - before_ms)
        line = (
            f"{now.elapsed_ms / 1000:5.0f} s  {now.phase:<8}  events {now.events:>8,} ({rate:>6,.0f}/s)  "
            f"open {now.open_groups:>5,}  records {now.records:>6,}"
        )
        if not self._is_verbose:
            return line
        return (
            f"{line}\n  folded {share(now.folding_ratio, now.records):>6}  "
            f"writes {now.values_written:>6,} ({share(now.writes_saved, now.values_written):>6} saved)  "
            f"handled {now.recomputed:>6,}  journal {_megabytes(now.journal_kept)}"
        )

    def story(self, now: Snapshot) -> Group:
        """Return the snapshot as five lines that fit into the terminal."""
        width = self.console.width
        newest = f"newest record  {self._describe(now.latest[-1], width - len('newest record  '))}" if now.latest else ""
        return Group(
            *(
                Text(line, no_wrap=True, overflow="ellipsis")
                for line in (
                    f"{now.elapsed_ms / 1000:.0f} s: {now.events:,} events arrived, {now.events_per_second:,.0f} a second",
                    f"{now.records:,} folded records (folding ratio {share(now.folding_ratio, now.records)}); "
                    f"{now.open_groups:,} groups are open",
                    f"{now.values_written:,} values written to the read store, "
                    f"{share(now.writes_saved, now.values_written)} fewer than events",
                    f"{now.recomputed:,} records processed by the subscriber; {now.retried:,} failed attempts retried",
                    newest,
                )
            )
        )

    def picture(self, now: Snapshot) -> Group:
        """Return the snapshot as a table, with the newest records below it."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim", width=LABELS_WIDTH, no_wrap=True)
        table.add_column()
        table.add_row("", Text(f"{now.elapsed_ms / 1000:.0f} s  {now.phase}", style="bold"))
        table.add_row("raw events", f"{now.events:,}   ({now.events_per_second:,.0f} a second, {now.lag_events:,} not yet folded)")
        table.add_row("open groups", f"{now.open_groups:,}")
        table.add_row("folded records", Text(f"{now.records:,}", style="bold green"))
        table.add_row("folding ratio", Text(share(now.folding_ratio, now.records), style="bold green"))
        table.add_row(
            "read-store writes",
            f"{now.values_written:,}   ({share(now.writes_saved, now.values_written)} saved against one per event)",
        )
        table.add_row("subscriber", f"{now.recomputed:,} recomputed   ({now.retried:,} attempts failed and retried)")
        sizes = f"{_megabytes(now.journal_received)} received, {_megabytes(now.journal_kept)} kept"
        table.add_row("journal", f"{now.journaled:,} events   ({sizes})")
        width = self.console.width
        examples = [Text(self._describe(record, width), style="cyan", no_wrap=True) for record in reversed(now.latest)]
        return Group(table, "", *examples)

    def _describe(self, record: dict[str, Any], width: int) -> str:
        return describe(record, self._group_field, self._changed, width)


def wrapped(line: str, width: int) -> list[str]:
    """Break a line between words, so that it fits into ``width`` columns; later lines are indented up to the text after its label.

    Words that are longer than a line are not broken.
    """
    label = _LABEL.match(line)
    indent = label.end() if label is not None and label.end() <= width // 2 else 0
    return textwrap.wrap(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True,
        replace_whitespace=False, expand_tabs=False,
    ) or [""]  # fmt: skip


def command_lines(words: Sequence[str], width: int) -> list[str]:
    """Divide a shell command into lines that fit into ``width`` columns, each but the last with a backslash at its end.

    Words that are longer than a line are not broken.
    """
    lines = [f"  {shlex.quote(words[0])}"]
    for word in map(shlex.quote, words[1:]):
        if cell_len(lines[-1]) + cell_len(word) + len("  \\") <= width:
            lines[-1] += f" {word}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {word}")
    return lines


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB"


def share(ratio: float, of: int) -> str:
    """Return a share as a percentage, or ``-`` if the total ``of`` is 0."""
    return f"{ratio:.1%}" if of else "-"


def describe(record: dict[str, Any], group_field: str, changed: str, width: int) -> str:
    """Describe a folded record in one line: ``account_1: likes, shares  (37 events in one record, reason quiet)``.

    If the line is too long, names are omitted, then the key is cut in the middle. Numbers are never cut.
    """
    fold = record["fold"]
    key = shown_key(record.get(group_field))
    names = [shown(name) for name in record[changed]]
    events = f"{fold['events']:,} event{'' if fold['events'] == 1 else 's'}"
    about = f"  ({events} in one record, reason {fold['reason']})"
    if len(about) + LEAST_KEY + LEAST_NAMES > width:
        about = f"  ({events})"
    room = width - len(about) - len(": ")
    key = cut(key, max(LEAST_KEY, room - cell_len(", ".join(names))))
    return f"{key}: {_listed(names, room - cell_len(key))}{about}"


def _listed(names: list[str], room: int) -> str:
    text = ", ".join(names)
    for end in range(len(names) - 1, 0, -1):
        if cell_len(text) <= room:
            break
        text = ", ".join([*names[:end], CUT])
    return cut(text, room)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a demo after its end.

    Attributes:
        snapshot: The last snapshot; its ``elapsed_ms`` is the length of the load.
        measured_on: The servers, for display.
        redelivered: Number of folded records that were sent again under the same id.
        done: Number of folded records that the subscriber has processed.
        retried: Number of failed attempts of the subscriber.
        accounts: Number of groups.
        values: Number of values that the read store has to contain.
    """

    snapshot: Snapshot
    measured_on: str
    redelivered: int
    dead_letters: int
    done: int
    retried: int
    accounts: int
    values: int


def story_lines(outcome: Outcome) -> list[str]:
    """Return the result in three sentences."""
    now = outcome.snapshot
    rejected = f" and {counted(outcome.dead_letters, 'dead letter')}" if outcome.dead_letters else ""
    return [
        "",
        f"{counted(now.events, 'event')} became {counted(now.records, 'folded record')}{rejected}"
        f" (folding ratio {share(now.folding_ratio, now.records)}).",
        f"The read store wrote {counted(now.values_written, 'value')}; one for each event would have been {now.events:,}.",
        f"The subscriber processed {counted(outcome.done, 'record')}; {counted(outcome.retried, 'failed attempt')}"
        f" {'was' if outcome.retried == 1 else 'were'} retried.",
    ]


def check_text(events: int) -> str:
    """Return the sentence about a check without differences."""
    return f"check passed: the read store equals a recomputation from all {counted(events, 'event')}"


def table_lines(outcome: Outcome) -> list[str]:
    """Return all figures, each on a line with a label."""
    now = outcome.snapshot
    seconds = now.elapsed_ms / 1000
    return [
        "",
        f"raw events         {now.events:,} in {seconds:.1f} s ({now.events / seconds:,.0f}/s)",
        f"folded records     {now.records:,}  (re-sent under the same id: {outcome.redelivered})",
        f"folding ratio      {now.folding_ratio:.1%}",
        f"read-store writes  {now.values_written:,} values; one per event: {now.events:,} ({now.writes_saved:.1%} saved)",
        f"subscriber         {counted(outcome.done, 'record')} done, {counted(outcome.retried, 'attempt')} failed and retried",
        f"dead letters       {outcome.dead_letters:,}",
        f"measured on        {outcome.measured_on}",
    ]


def check_lines(outcome: Outcome) -> list[str]:
    """Return the lines about a check without differences, with the number of groups and values."""
    return [
        f"check passed       {outcome.accounts:,} accounts, {outcome.values:,} account metrics: "
        f"the read store equals a recomputation from all {outcome.snapshot.events:,} events",
        "                   and so do the scores of the subscriber, which has done each folded record",
    ]
