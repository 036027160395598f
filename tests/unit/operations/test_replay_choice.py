"""Which dead letters are replayed into the source, and what is reported of the others."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app.embedded.ports import free_port
from streams_app.errors import TryAgainError
from streams_app.fold import Fold
from streams_app.operations.dead_letter import DeadLetterSelection, ListedDeadLetter
from streams_app.operations.replay import DeadLetterReplay, ReplayFilter, ReplayProgress, summary
from streams_app.operations.replay_destinations import FoldDestination
from streams_app.settings import Limits, Settings
from streams_app.settings.sections import KafkaSettings
from tests.helpers.manual_clock import ManualClock

GOOD = b'{"id": "a", "m": ["x"]}'
PARTITIONS = 4


def fold(**values: Any) -> Fold:
    return Fold(**({"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "15m"} | values))


def dead_letter(
    offset: int = 7, *, key: bytes | None = b"a", value: bytes | None = GOOD, dead_letter_offset: int = 0, **headers: str
) -> ListedDeadLetter:
    own_headers = {
        "reason": "no-changed", "fold": "f", "app-id": "social", "source-topic": "s", "source-partition": "3",
        "source-offset": str(offset), "detail": "",
    } | {name.replace("_", "-"): text for name, text in headers.items()}  # fmt: skip
    return ListedDeadLetter(0, dead_letter_offset, key, value, 1, own_headers)


def choose(
    *dead_letters: ListedDeadLetter,
    selection: DeadLetterSelection | None = None,
    before: tuple[ListedDeadLetter, ...] = (),
    declared: Fold | None = None,
) -> tuple[list[ListedDeadLetter], ReplayProgress]:
    done = ReplayProgress()
    selection = selection or DeadLetterSelection("social", "f")
    destination = FoldDestination("social", declared or fold(), Limits())
    replay_filter = ReplayFilter(destination, selection, PARTITIONS, {each.digest() for each in before})
    return [each for each in dead_letters if replay_filter.selects(each, done)], done


def test_dead_letter_accepted_by_the_current_definition_is_replayed() -> None:
    assert [dead_letter()] == choose(dead_letter())[0]


@pytest.mark.parametrize(
    "headers", [{"fold": "other"}, {"app_id": "mirror"}], ids=["of another fold", "of a fold of that name in another application"]
)
def test_foreign_dead_letter_is_not_counted(headers: dict[str, Any]) -> None:
    assert ([], ReplayProgress()) == choose(dead_letter(**headers))


def test_dead_letter_without_an_application_header_belongs_to_every_application() -> None:
    old = dead_letter()
    del old.headers["app-id"]

    assert [old] == choose(old)[0]


def test_event_that_would_be_rejected_anew_stays_and_is_counted_by_reason() -> None:
    chosen, done = choose(
        dead_letter(1, value=b"no json"),
        dead_letter(2, value=b"{}"),
        dead_letter(3),
        dead_letter(4, value=b"[]"),
        dead_letter(5, value=b"1"),
    )

    assert [dead_letter(3)] == chosen
    assert {"not-json": 1, "no-group": 1, "not-an-object": 2} == done.rejected


def test_current_definition_includes_the_functions_of_a_fold() -> None:
    def decode(value: bytes) -> Any:
        return {"id": "a", "m": [value.decode()]}

    chosen, done = choose(dead_letter(1, value=b"no json"), dead_letter(2, value=b"\xff"), declared=fold(decode=decode))

    assert ([dead_letter(1, value=b"no json")], {"user-error": 1}) == (chosen, done.rejected)


def test_dead_letter_written_twice_is_replayed_once() -> None:
    chosen, done = choose(dead_letter(dead_letter_offset=4, failed_at_ms="1"), dead_letter(dead_letter_offset=9, failed_at_ms="2"))

    assert ([4], 1) == ([each.offset for each in chosen], done.duplicates)


def test_dead_letter_replayed_earlier_stays_even_if_written_twice() -> None:
    chosen, done = choose(dead_letter(dead_letter_offset=9), dead_letter(8), before=(dead_letter(dead_letter_offset=4),))

    assert ([dead_letter(8)], 1) == (chosen, done.already_replayed)


def test_unselected_dead_letter_is_not_reported_as_replayed_earlier() -> None:
    only_the_first = DeadLetterSelection("social", "f", positions=frozenset({(3, 1)}))

    chosen, done = choose(
        dead_letter(1), dead_letter(2), dead_letter(3), selection=only_the_first, before=(dead_letter(1), dead_letter(2))
    )

    assert ([], 1, 1) == (chosen, done.already_replayed, done.unselected)


def test_new_event_at_the_position_of_a_replayed_one_in_a_recreated_topic_is_replayed() -> None:
    other = dead_letter(value=b'{"id": "b", "m": ["x"]}')

    assert [other] == choose(other, before=(dead_letter(),))[0]


def test_unselected_dead_letters_are_counted_and_use_no_memory() -> None:
    chosen, done = choose(
        dead_letter(1),
        dead_letter(2, reason="not-json"),
        selection=DeadLetterSelection("social", "f", reasons=frozenset({"not-json"})),
    )

    assert ([dead_letter(2, reason="not-json")], 1) == (chosen, done.unselected)


def test_dead_letters_are_selected_by_reason_position_and_key() -> None:
    dead_letters = [
        dead_letter(1),
        dead_letter(2),
        dead_letter(3, key=b"b"),
        dead_letter(4, key=None),
        dead_letter(1, source_partition="2"),
    ]
    by_place = DeadLetterSelection("social", "f", positions=frozenset({(3, 1), (3, 3)}))
    by_key = DeadLetterSelection("social", "f", keys=frozenset({b"b"}))
    by_both = DeadLetterSelection("social", "f", positions=frozenset({(3, 1)}), keys=frozenset({b"b"}))

    assert [dead_letters[0], dead_letters[2]] == choose(*dead_letters, selection=by_place)[0]
    assert [dead_letters[2]] == choose(*dead_letters, selection=by_key)[0]
    assert [] == choose(*dead_letters, selection=by_both)[0]


def test_dead_letters_of_a_renamed_fold_are_selected_by_its_former_name() -> None:
    assert [dead_letter(fold="old")] == choose(
        dead_letter(), dead_letter(fold="old"), selection=DeadLetterSelection("social", "old")
    )[0]


@pytest.mark.parametrize(
    ("value", "headers", "words"),
    [
        pytest.param(None, {"value_bytes_not_kept": "9"}, "the value was too large for s.dead and was not kept", id="no value"),
        pytest.param(None, {"key_bytes_not_kept": "9"}, "the key was too large", id="no key"),
        pytest.param(GOOD, {"reason": "record-too-large"}, "no event", id="a folded record"),
        pytest.param(GOOD, {"source_partition": "4"}, "partition 4 of s does not exist any more", id="fewer partitions"),
        pytest.param(GOOD, {"source_topic": "t"}, "an event of t, and the fold reads s now", id="another source"),
        pytest.param(GOOD, {"source_offset": "-1"}, "its headers do not say where", id="no offset"),
        pytest.param(GOOD, {"source_partition": "three"}, "its headers do not say where", id="no partition"),
    ],
)
def test_unrestorable_event_stays_with_an_explanation(value: bytes | None, headers: dict[str, Any], words: str) -> None:
    ignoring = fold(tombstones="ignore")

    chosen, done = choose(dead_letter(value=value, **headers), declared=ignoring)

    assert ([], [1]) == (chosen, list(done.not_replayable.values()))
    assert words in next(iter(done.not_replayable))


def test_dead_letter_without_the_header_has_its_missing_value_in_the_detail() -> None:
    old = dead_letter(value=None, reason="too-large", detail="the limit is 5; value of 9 bytes not kept")
    quoted = dead_letter(detail="user said: value of 9 bytes not kept")
    del old.headers["app-id"]

    assert ([quoted], 1) == ((found := choose(old, quoted))[0], found[1].not_replayable.total())


def test_tombstone_ignored_by_the_current_definition_is_replayed_as_one() -> None:
    tombstone = dead_letter(value=None, reason="tombstone")

    assert ([], {"tombstone": 1}) == ((found := choose(tombstone))[0], found[1].rejected)
    assert [tombstone] == choose(tombstone, declared=fold(tombstones="ignore"))[0]


def test_summary_counts_replayed_rejected_and_other_dead_letters() -> None:
    done = ReplayProgress(
        offsets=20, read=12, replayed=3, already_replayed=1, duplicates=2, unselected=4, unacknowledged=5, unrecorded=6
    )
    done.rejected.update({"no-group": 1, "not-json": 2})
    done.not_replayable["a reason"] += 1

    assert [
        "interrupted after 12 of 20 records of the dead-letter topic",
        "1 replayed before: --again would repeat them",
        "2 duplicates: replayed once",
        "4 not selected: they can be replayed later",
        "1 not replayed: a reason",
        "5 sent and not acknowledged: they may have arrived, and the next replay sends them again",
        "6 replayed and not recorded: the next replay sends them again",
        "3 replayed, 3 rejected again (not-json 2, no-group 1)",
    ] == summary(done, dry_run=False, failed=True)
    assert ["dry run: 3 would pass now, 0 would be rejected again"] == summary(
        ReplayProgress(replayed=3), dry_run=True, failed=False
    )


async def test_unacknowledged_event_is_not_counted_as_replayed() -> None:
    settings = Settings(app_id="social", kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}"), folds=(fold(),))
    replay = DeadLetterReplay(
        settings, FoldDestination("social", fold(), Limits()), DeadLetterSelection("social", "f"), ManualClock()
    )

    with pytest.raises(TryAgainError, match="s does not acknowledge events"):
        await replay._replay_events([dead_letter(1), dead_letter(2)])

    assert (0, 2, 0) == (replay.done.replayed, replay.done.unacknowledged, replay.done.unrecorded)
