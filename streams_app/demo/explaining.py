"""Explains a folded record of the demo by its raw events, as ``journal read KEY --fold ID`` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from streams_app.codec import member_of
from streams_app.demo.kept import program
from streams_app.demo.stage import FOLD, JOURNAL
from streams_app.formatting import counted, shown, shown_key
from streams_app.operations.folded_events import RawEvent, parse_fold_id, raw_events
from streams_app.settings import Settings

MAX_SHOWN: Final = 3
"""Maximum number of raw events that are shown."""

HOT_KEY: Final = "account_1"
"""An account that is always active."""


class Explanation(NamedTuple):
    """Comparison of a folded record with its raw events.

    Attributes:
        lines: Lines about the raw events, for display.
        faults: Differences between the record and its raw events, one sentence each.
    """

    lines: list[str]
    faults: list[str]


def follow_command(config: Path, key: str) -> list[str]:
    """Return the words of the command that follows the events of a key, for a second terminal."""
    return [*program(), "journal", "read", key, "--follow", "--config", str(config)]


async def explained(settings: Settings, record: Mapping[str, Any]) -> Explanation:
    """Compare a folded record with its raw events in the journal, of which the first few are shown.

    Raises:
        TryAgainError: Redis does not answer.
    """
    fold, journal = settings.fold(FOLD), settings.journal(JOURNAL)
    group = record[fold.group_fields[0]]
    key = group.encode() if journal.is_by_record_key else member_of((group,))
    found = [one async for one in raw_events(settings, journal, (key,), parse_fold_id(record["fold"]["id"]))]
    taken = [one for one in found if isinstance(one, RawEvent) and not one.rejected]
    return Explanation(lines_of(record, shown_key(group), taken), differences(record, record[fold.changed_field], taken))


def lines_of(record: Mapping[str, Any], key: str, taken: list[RawEvent]) -> list[str]:
    """Return lines for display: the number of raw events of a folded record, and the first raw events (pure)."""
    lines = [f"one record         {record['fold']['id']} of {key}: the journal has {counted(len(taken), 'raw event')} of it"]
    lines += [
        f"                   {one.entry.partition}-{one.entry.offset}  changed {', '.join(map(shown, one.changed or ()))}"
        for one in taken[:MAX_SHOWN]
    ]
    return lines + (["                   ..."] if len(taken) > MAX_SHOWN else [])


def differences(record: Mapping[str, Any], names: list[str], taken: list[RawEvent]) -> list[str]:
    """Return a sentence for each difference between a folded record and its raw events (pure)."""
    fold = record["fold"]
    faults = []
    if len(taken) != fold["events"]:
        faults.append(f"{fold['id']}: {counted(fold['events'], 'event')} in the record, {len(taken)} in the journal")
    changed = {name for one in taken for name in one.changed or ()}
    if changed != set(names):
        found, meant = (", ".join(map(shown, sorted(some))) for some in (changed, names))
        faults.append(f"{fold['id']}: the record says that {meant} changed, the events in the journal {found}")
    return faults
