"""Which dead letters of a subscriber are replayed, and with which headers."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app.delivery.batch import TP
from streams_app.fold import Fold
from streams_app.operations.dead_letter import DeadLetterSelection, ListedDeadLetter, split_headers
from streams_app.operations.replay import ReplayFilter, ReplayProgress
from streams_app.operations.replay_destinations import ReplayOverride, SubscriberDestination
from streams_app.settings import EventsSettings, Settings
from streams_app.subscribers.declaration.loading import subscription_named
from streams_app.subscribers.declaration.replayed_event import OriginalPosition, replay_headers

GOOD = b'{"order_id": "o1", "cents": 5}'
EVENT = (("ce_id", b"e1"), ("ce_type", b"order.paid"))
FOLD = Fold(name="account-metrics", source="s", group_key="id", changed="m", quiet_period="15m")
SETTINGS = Settings(app_id="social", folds=(FOLD,), events=EventsSettings(catalogue="tests.helpers.events.shop:catalogue"))
SHIP = subscription_named(SETTINGS, "ship")


def dead_letter(offset: int = 7, *, value: bytes = GOOD, received: Any = EVENT, **headers: str) -> ListedDeadLetter:
    own_headers = {
        "reason": "failed", "subscriber": "ship", "app-id": "social", "source-topic": "orders", "source-partition": "3",
        "source-offset": str(offset), "source-timestamp-ms": "5", "event-id": "e1",
    } | {name.replace("_", "-"): text for name, text in headers.items()}  # fmt: skip
    return ListedDeadLetter(0, offset, b"o1", value, 1, own_headers, received)


def choose(
    *dead_letters: ListedDeadLetter, interrupted: bool = False, event_ids: tuple[str, ...] = (), event_sources: tuple[str, ...] = ()
) -> tuple[list[ListedDeadLetter], ReplayProgress]:
    done = ReplayProgress()
    destination = SubscriberDestination(SETTINGS, SHIP, ReplayOverride(interrupted, event_ids, bool(event_sources)))
    ids, sources = frozenset(event_ids), frozenset(event_sources)
    replay_filter = ReplayFilter(
        destination, DeadLetterSelection("social", "ship", kind="subscriber", event_ids=ids, event_sources=sources), 4, ()
    )
    for one in dead_letters:
        destination.observe(one)
    return [one for one in dead_letters if replay_filter.selects(one, done)], done


def replayed(one: ListedDeadLetter) -> Any:
    return SubscriberDestination(SETTINGS, SHIP, ReplayOverride()).event(one)


def test_event_is_replayed_into_the_application_topic_with_its_headers_and_position() -> None:
    event = replayed(dead_letter())

    assert ("social.again", b"o1", GOOD, None) == (event.topic, event.key, event.value, event.partition)
    assert replay_headers("ship", OriginalPosition(TP("orders", 3), 7, 5), EVENT) == event.headers


def test_event_rejected_after_a_replay_keeps_its_first_position() -> None:
    origin = OriginalPosition(TP("orders", 3), 7, 5)
    second = dead_letter(
        2, received=tuple(replay_headers("ship", origin, EVENT)), source_topic="social.again", source_partition="0"
    )

    assert [second] == choose(second)[0]
    assert replay_headers("ship", origin, EVENT) == replayed(second).headers


def test_events_of_several_sources_with_one_id_are_not_replayed_until_the_source_is_named() -> None:
    eu, us = (
        dead_letter(at, received=(*EVENT, ("ce_source", source)), reason="interrupted") for at, source in ((7, b"/eu"), (8, b"/us"))
    )
    chosen, done = choose(eu, us, event_ids=("e1",))

    assert ([], ["events of several sources have the id 'e1': say which with --event-source, of '/eu', '/us'"]) == (
        chosen, list(done.not_replayable),
    )  # fmt: skip
    assert [us] == choose(eu, us, event_ids=("e1",), event_sources=("/us",))[0]
    assert [eu] == choose(eu, event_ids=("e1",))[0]
    assert [eu, us] == choose(eu, us, interrupted=True)[0]


def test_interrupted_event_stays_unless_explicitly_selected() -> None:
    cut_off, other = dead_letter(reason="interrupted"), dead_letter(8, event_id="e2", reason="interrupted")
    chosen, done = choose(cut_off, dead_letter(9))

    assert [dead_letter(9)] == chosen
    assert ["interrupted, they may have been handled: --interrupted replays them, or --event-id one of them"] == list(
        done.not_replayable
    )
    assert [cut_off, other] == choose(cut_off, other, interrupted=True)[0]
    assert [other] == choose(cut_off, other, event_ids=("e2",))[0]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("reason", ["interrupted", "timed-out"])
def test_late_event_is_replayed_only_if_explicitly_selected(reason: str, is_first: bool) -> None:
    cut_off, late = dead_letter(reason=reason), dead_letter(reason="finished-late")
    dead_letters = (late, cut_off) if is_first else (cut_off, late)
    chosen, done = choose(*dead_letters, interrupted=True)

    assert ([], [f"{reason}, and finished late: they were handled; --event-id replays one nevertheless"]) == (
        chosen, list(done.not_replayable)
    )  # fmt: skip
    assert [cut_off] == choose(*dead_letters, event_ids=("e1",))[0]


def test_event_rejected_by_the_current_declaration_stays() -> None:
    chosen, done = choose(dead_letter(value=b"{}"), dead_letter(8, value=b"1"))

    assert ([], {"not-valid": 2}) == (chosen, done.rejected)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (dead_letter(source_topic="invoices"), "it is an event of invoices, and the subscriber reads orders now"),
        (dead_letter(header_bytes_not_kept="20000"), "headers too large to be kept"),
        (dead_letter(source_offset="x"), "do not say where"),
        (dead_letter(source_timestamp_ms=""), "do not say where"),
        (dead_letter(source_topic="social.again"), "do not say where"),
        (dead_letter(received=(("ce_type", b"order.shipped"),)), "another event"),
    ],
)
def test_unrestorable_event_stays_with_an_explanation(one: ListedDeadLetter, words: str) -> None:
    chosen, done = choose(one)

    assert ([], 1) == (chosen, done.not_replayable.total())
    assert words in next(iter(done.not_replayable))


def test_dead_letter_headers_are_distinguished_from_event_headers_of_any_name() -> None:
    own = [("reason", b"failed"), ("subscriber", b"ship")]
    stranger = [("reason", b"mine"), ("received-headers", b"7"), ("streams-app-put-back", b"social/ship")]
    added = [("value-bytes-not-kept", b"9")]

    assert ({"reason": "failed", "subscriber": "ship", "value-bytes-not-kept": "9"}, stranger) == split_headers(
        [*own, ("received-headers", b"3"), *stranger, *added]
    )
