"""Explanations of an event of a subscriber, from what is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from streams_app.cli.sentences import lay_out
from streams_app.delivery.batch import TP
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.operations.dead_letter import ListedDeadLetter
from streams_app.operations.event_facts import (
    EventAttempts,
    EventFacts,
    FoldedEventState,
    SearchedOffsets,
    explanation_of,
    state_of_event,
    subscriber_in,
)
from streams_app.operations.event_text import event_sentences, worker_text
from streams_app.operations.group_facts import GroupDrop
from streams_app.operations.worker_pages import Page
from streams_app.settings import Settings
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.declaration.subscription import Subscription, subscriptions_of
from streams_app.subscribers.execution.crash_isolation import WATCH_PASSED
from streams_app.subscribers.execution.in_flight_event import DUE_AT_ONCE
from streams_app.subscribers.state.intervals import Interval
from streams_app.subscribers.state.offset_metadata import OffsetMetadata
from streams_app.subscribers.state.offset_tracker import OffsetsAbove
from streams_app.subscribers.state.store import AttemptEntry
from tests.helpers.events import shop

NOW_MS = 1_700_000_000_000
TP0 = TP("orders", 0)
FOLD = {"name": "account-metrics", "source": "events", "group_key": "id", "changed": "fields", "quiet_period": "1s"}
METADATA = OffsetMetadata("", OffsetsAbove((Interval(12, 20),), (22,)))


@pytest.fixture(scope="module")
def ship() -> Subscription:
    settings = Settings.model_validate({"app_id": "shop", "folds": [FOLD]})
    return next(one for one in subscriptions_of(shop.catalogue, settings) if one.subscriber.name == "ship")


def found(offset: int = 30, **what: Any) -> EventFacts:
    defaults = {
        "begin": 0,
        "end": 100,
        "committed": OffsetAndMetadata(10),
        "metadata": METADATA,
        "event_id": "e1",
        "type": "order.paid",
    }
    return EventFacts(TP0, offset, **{**defaults, **what})


def text_of(one: Subscription, *events: EventFacts, asked: str = "e1", searched: Sequence[SearchedOffsets] = ()) -> str:
    """Return the explanation of one event, of a record key with several events, or of nothing."""
    explanation = explanation_of(asked, one, events, searched, None, NOW_MS, is_key=len(events) > 1)
    return "\n".join(lay_out(verdict, facts, 10_000) for verdict, facts in event_sentences(explanation))


def dead_letter(reason: str) -> ListedDeadLetter:
    return ListedDeadLetter(0, 5, b"k", b"v", NOW_MS, {"reason": reason, "attempts": "8", "detail": "no such article"})


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (found(100), "is not in the log yet"),
        (found(110, high=110), "is not in the log yet"),
        (
            found(109, high=110),
            "is in the log, hidden by a transaction that is open since offset 100: no consumer reads past it before that",
        ),
        (found(109, high=110, committed=None), "is in the log, hidden by a transaction that is open since offset 100"),
        (found(committed=None, metadata=None), "cannot begin: the group has no commit for this partition, and with idempotent"),
        (found(9), "is finished"),
        (found(12), "is finished"),
        (found(19), "is finished"),
        (found(20), "waits for its turn, behind 10 offsets at most"),
        (found(30), "waits for its turn, behind 20 offsets at most"),
        (found(10), "is the next one"),
        (
            found(30, metadata=None),
            "behind 20 offsets at most, unless it is finished: the commit does not record which events above its offset are",
        ),
        (found(15, begin=20, metadata=None), "is lost: retention has removed it before it was finished"),
        (found(9, begin=20), "is finished, or was lost: retention has removed its record"),
        (found(9, begin=20, dead_letters=(dead_letter("failed"),)), "is a dead letter: failed"),
        (
            found(kept=AttemptEntry(0, 0, NOW_MS - 1)),
            "has failed while its subscriber was suspended, which does not count, and waits",
        ),
        (found(event_id=""), "is none: the log has no record at this offset, and passes over it"),
        (found(type="order.sent", is_ours=False), "is of another type, order.sent: not for this subscriber"),
        (found(9, type="order.sent", is_ours=False), "is of another type, order.sent: not for this subscriber"),
        (found(type="", is_ours=False), "was replayed for another subscriber: not for this one"),
        (found(kept=AttemptEntry(2, 0, NOW_MS + 5_000)), "has failed 2 times and waits for its next attempt, due in 5.0 s"),
        (found(kept=AttemptEntry(1, 0, NOW_MS - 1)), "has failed 1 time and waits for its next attempt, due now"),
        (found(kept=AttemptEntry(1)), "runs now, or the process in which it ran has died and its partition is not claimed yet"),
        (
            found(kept=AttemptEntry(2, 1, WATCH_PASSED)),
            "runs now, or the process in which it ran has died and its partition is not claimed yet",
        ),
        (
            found(kept=AttemptEntry(1, 1, 1)),
            "was interrupted because its process died or released its partition; it is retried as soon as possible",
        ),
        (found(22), "runs now, or the process in which it ran has died and its partition is not claimed yet"),
        (found(9, dead_letters=(dead_letter("failed"),)), "is a dead letter: failed"),
        (
            found(9, dead_letters=(dead_letter("interrupted"), dead_letter("finished-late"))),
            "is a dead letter: interrupted, and has ended well after all",
        ),
        (found(kept=AttemptEntry(1, 0, NOW_MS + 5_000), dead_letters=(dead_letter("failed"),)), "has failed 1 time"),
    ],
)
def test_verdict_uses_the_most_reliable_evidence(event: EventFacts, expected: str, ship: Subscription) -> None:
    verdict = " ".join(text_of(ship, event).partition("\n  commit")[0].split())

    assert expected in verdict
    assert verdict.startswith("Event ")


def test_replayed_dead_letter_is_reported_as_such(ship: Subscription) -> None:
    first, second = dead_letter("failed"), replace(dead_letter("rejected"), value=b"w")
    back = frozenset({first.digest()})

    once = text_of(ship, found(9, dead_letters=(first,), replayed=back)).splitlines()
    done = text_of(ship, found(9, dead_letters=(first,), replayed=back, is_none_waiting=True)).splitlines()
    twice = text_of(ship, found(9, dead_letters=(first, second), replayed=back)).splitlines()

    assert "Event e1 (orders:0:9) of subscriber ship is a dead letter: failed, and was replayed since." == once[0]
    assert "Event e1 (orders:0:9) of subscriber ship is a dead letter: failed, was replayed since, and is finished." == done[0]
    assert once[4].endswith("no such article, replayed since")
    assert "Event e1 (orders:0:9) of subscriber ship is a dead letter: rejected." == twice[0]


def test_repeatable_event_without_a_commit_has_not_begun(ship: Subscription) -> None:
    repeatable = replace(ship, subscriber=replace(ship.subscriber, idempotent="yes"))
    text = " ".join(text_of(repeatable, found(committed=None, metadata=None)).split())

    assert "has not begun: no worker has run this subscriber in this partition." in text


def test_five_labelled_lines_show_the_evidence(ship: Subscription) -> None:
    event = found(22, kept=AttemptEntry(2, 1, NOW_MS + 5_000), dead_letters=(dead_letter("failed"),))
    _, *lines = text_of(ship, event).splitlines()

    assert [
        "  commit  group shop.ship has committed 10 for orders-0: events below it are finished, this is not",
        "  offsets 8 offsets above the committed offset finished, 1 begun; this one is begun. It is as old as the last commit",
        "  redis   2 attempts made; the next one is due in 5.0 s (2023-11-14 22:13:25Z); 1 death of its process may be its doing",
        f"  dead    in {ship.dead_letters}: failed at 2023-11-14 22:13:20Z after 8 attempts: no such article",
        "  lag     the log ends at 100, 90 offsets above the committed offset; no worker was asked, as http.port is 0",
    ] == [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (AttemptEntry(7, 0, NOW_MS + 5_000), "; if it keeps failing, one is made after attempt 8, in 5.0 s at most"),
        (AttemptEntry(6, 0, NOW_MS - 1), "; if it keeps failing, one is made after attempt 8, in 5 min at most"),
        (AttemptEntry(0, 0, NOW_MS + 1_000), "; if it keeps failing, one is made after attempt 8, in 11 min 5 s at most"),
        (AttemptEntry(2, 1), ""),
        (AttemptEntry(2, 0, DUE_AT_ONCE), ""),
        (None, ""),
    ],
)
def test_time_of_the_dead_letter_of_a_failing_event_is_shown(ship: Subscription, kept: AttemptEntry | None, expected: str) -> None:
    with_defaults = replace(ship, subscriber=replace(ship.subscriber, retry=Retries()))
    lines = text_of(with_defaults, found(kept=kept)).splitlines()

    assert f"  dead    none of it in {ship.dead_letters}{expected}" in [line.rstrip() for line in lines]


def test_commit_metadata_is_not_applied_to_an_offset_missing_from_the_log(ship: Subscription) -> None:
    lines = [line.rstrip() for line in text_of(ship, found(100, event_id="")).splitlines()]

    assert "  offsets 8 offsets above the committed offset finished, 1 begun" in lines


def test_redis_without_an_answer_is_reported_and_nothing_is_invented(ship: Subscription) -> None:
    text = text_of(ship, found(redis_fault="Redis at redis://x does not answer"))

    assert "  redis   not known: Redis at redis://x does not answer" in text


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (AttemptEntry(2, 0, 1), "2 attempts made; the next one is due now"),
        (AttemptEntry(2, 0, NOW_MS - 1), "2 attempts made; the next one is due now"),
        (AttemptEntry(2, 1), "attempt 2 is in progress; 1 death of its process may be its doing"),
        (
            AttemptEntry(2, 1, WATCH_PASSED),
            "attempt 2 is in progress, begun with a few others at most, and watched for a while; 1 death of its process may be its "
            "doing",
        ),
    ],
)
def test_redis_entry_shows_a_running_attempt_or_the_time_of_the_next_one(
    kept: AttemptEntry, expected: str, ship: Subscription
) -> None:
    text = " ".join(text_of(ship, found(kept=kept)).split())

    assert f" redis {expected} dead " in text


@pytest.mark.parametrize(
    ("searched", "verdict", "searched_text"),
    [
        (
            [SearchedOffsets("shop.again", 0, 0, None), SearchedOffsets("orders", 7, 1, NOW_MS)],
            "No unfinished event of subscriber ship has the id or key e7: it is finished, or never came.",
            "shop.again from the committed offsets on (0 offsets); orders from the committed offsets on (7 offsets) and below them "
            "since 2023-11-14 22:13:20Z (1 offset)",
        ),
        (
            [SearchedOffsets("orders", 1_000, 0, NOW_MS, unseen=500, is_complete=False)],
            "No event with the id or key e7 was found among the first that subscriber ship has not finished.",
            "orders from the committed offsets on (1,000 offsets) and below them since 2023-11-14 22:13:20Z (0 offsets), but not "
            "500 offsets more: --limit 1500 looks at them, too",
        ),
    ],
)
def test_unsuccessful_search_reports_what_was_searched(
    searched: list[SearchedOffsets], verdict: str, searched_text: str, ship: Subscription
) -> None:
    text = text_of(ship, asked="e7", searched=searched)

    assert " ".join(text.split()).startswith(f"{verdict} search {searched_text} dead none of it in ")


def test_record_key_is_answered_by_the_state_of_its_newest_events(ship: Subscription) -> None:
    events = [found(30, event_id="e3"), found(22, event_id="e2", kept=AttemptEntry(1, due_ms=NOW_MS + 60_000)), found(9)]
    searched = [SearchedOffsets("orders", 90, 10, NOW_MS)]
    text = text_of(ship, *events, asked="o7", searched=searched)

    assert [
        "No event of subscriber ship has the id o7, but it is a record key. The newest 3 events with it:",
        "Event e3 (orders:0:30) waits for its turn, behind 20 offsets at most.",
        "Event e2 (orders:0:22) has failed 1 time and waits for its next attempt, due in 1 min.",
        "Event e1 (orders:0:9) is finished.",
    ] == text.splitlines()[:4]
    assert "streams-app events explain ship orders:0:30" in text


GAUGES = "\n".join(
    f'streams_app_subscriber_{name}{{subscriber="ship"}} {value}'
    for name, value in (("waiting_events", 7.0), ("running_events", 2.0), ("retrying_events", 1.0), ("suspended", 1.0))
)

WAITING = """
streams_app_waiting_for{subscriber="ship",what="redis-memory"} 1.0
streams_app_waiting_for{subscriber="ship",what="redis"} 0.0
streams_app_waiting_for{subscriber="another",what="broker"} 1.0
"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (None, "no worker was asked, as http.port is 0"),
        (Page("http://w", None, "does not answer"), "the worker at http://w does not answer"),
        (Page("http://w", "up 1\n"), "the worker at http://w does not run it"),
        (
            Page("http://w", f"{GAUGES}\n"),
            "in the worker at http://w 7 wait, 2 run, 1 wait for a retry, and it is suspended: its last attempts have all failed. "
            "One event at a time is tried until one succeeds, all others wait for that; meanwhile, for as long as its patience, "
            "failed attempts do not count",
        ),
        (
            Page("http://w", GAUGES.replace('suspended{subscriber="ship"} 1', 'suspended{subscriber="ship"} 0') + WAITING),
            "in the worker at http://w 7 wait, 2 run, 1 wait for a retry; Redis is full",
        ),
    ],
)
def test_worker_reports_the_state_of_the_subscriber(page: Page | None, expected: str) -> None:
    assert expected == worker_text(subscriber_in(page, "ship"))


def test_facts_of_a_failing_event_have_its_attempts_and_when_it_becomes_a_dead_letter(ship: Subscription) -> None:
    one = replace(ship, subscriber=replace(ship.subscriber, retry=Retries()))
    state = state_of_event(found(kept=AttemptEntry(7, 1, NOW_MS + 5_000)), one, NOW_MS)

    assert ("retrying", "neither", 10) == (state.verdict, state.by_commit, state.commit and state.commit.offset)
    assert EventAttempts(7, 1, False, False, NOW_MS + 5_000, 5_000, 8) == state.attempts


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ({"read_to": None}, "events:2:7 is not folded yet. read no worker has ever claimed events-2 for fold f log it ends at 9"),
        ({}, "events:2:7 is not folded yet. read events-2 is read up to offset 5 log it ends at 9"),
        (
            {"verdict": "closed", "group": "a b", "key": "a b"},
            "events:2:7 was folded into group a b of fold f, which is closed: its record is in folded, unless the group was "
            "dropped more than a week ago. more streams-app groups explain 'a b' --fold f",
        ),
        (
            {"verdict": "no-group", "why": "gone", "drops": (GroupDrop("17", "events", 2, 3, 5, 8, NOW_MS, "me", "a loop"),)},
            'events:2:7 is in no known group: gone. dropped perhaps with "17": 3 events of events-2, offsets 5 to 8, at 2023-11-14 '
            "22:13:20Z by me: a loop",
        ),
    ],
)
def test_event_of_a_source_is_explained_by_what_its_fold_did(what: dict[str, Any], expected: str) -> None:
    state = msgspec.structs.replace(FoldedEventState("not-folded", "f", "events", 2, 7, "folded", 9, 5), **what)
    ((verdict, facts),) = event_sentences(state)

    assert expected == " ".join(lay_out(verdict, facts, 120).split())
