"""Which dead letters are listed if there are more than requested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from streams_app.cli import group
from streams_app.cli.dead_letters import _nothing, _print
from streams_app.operations.dead_letter import RECEIPT_HEADER, DeadLetterSelection, ListedDeadLetter
from streams_app.operations.dead_letters import OldestDeadLetters, ShownDeadLetter
from streams_app.reasons import Reason


@pytest.mark.parametrize(("limit", "expected"), [(1, [10]), (3, [10, 20, 30]), (9, [10, 20, 30, 40])])
def test_oldest_dead_letters_are_kept_across_partitions(limit: int, expected: list[int]) -> None:
    pages = [[(0, 20), (0, 40)], [(1, 10), (1, 30)]]
    oldest = OldestDeadLetters(limit)
    for page in pages:
        oldest.add([ListedDeadLetter(partition, time, None, None, time, {}) for partition, time in page])

    assert (expected, 4) == ([one.dead_letter.timestamp_ms for one in oldest.shown()], oldest.total)


def test_dead_letter_sent_twice_is_listed_once_and_says_so() -> None:
    oldest = OldestDeadLetters(5)
    oldest.add(
        ListedDeadLetter(0, time, None, b"", time, {"letter-id": letter_id}) for time, letter_id in ((7, "a"), (8, "b"), (6, "a"))
    )

    assert [("a", 6, 2), ("b", 8, 1)] == [
        (one.dead_letter.headers["letter-id"], one.dead_letter.timestamp_ms, one.times) for one in oldest.shown()
    ]
    assert 2 == oldest.total


def test_dead_letters_are_listed_from_a_start_time() -> None:
    wanted = DeadLetterSelection("shop", "ship", since_ms=5)

    assert [5, 6] == [time for time in (4, 5, 6) if wanted.matches(ListedDeadLetter(0, 0, None, b"", time, {}))]


@pytest.mark.parametrize(
    ("wanted", "has_others", "expected"),
    [
        (DeadLetterSelection("shop", "ship", kind="subscriber"), False, "no dead letters of subscriber ship"),
        (DeadLetterSelection("shop", "f", event_ids=frozenset({"e"})), False, "no dead letters of fold f"),
        (DeadLetterSelection("shop", "f", event_ids=frozenset({"e"})), True, "none of the dead letters of fold f fits --event-id"),
        (
            DeadLetterSelection("shop", "f", frozenset({"failed"}), since_ms=5),
            True,
            "none of the dead letters of fold f fits --reason and --since",
        ),
        (DeadLetterSelection("shop", "f", since_ms=5), False, "none of the dead letters of fold f fits --since"),
    ],
)
def test_empty_list_says_whether_the_topic_is_empty_or_nothing_matches(
    wanted: DeadLetterSelection, has_others: bool, expected: str
) -> None:
    assert expected == _nothing(wanted, has_others=has_others)


@pytest.mark.parametrize(("max_bytes", "shown"), [(None, "abcdef"), (6, "abcdef"), (5, "abcde…")])
def test_value_is_whole_or_says_that_it_is_truncated(max_bytes: int | None, shown: str) -> None:
    assert shown == ListedDeadLetter(0, 0, None, b"abcdef", 0, {}).row(max_bytes)["value"]


@pytest.mark.parametrize(("reasons", "taken"), [((), ["failed", "crashed"]), (("failed", "crashed"), ["failed", "crashed"])])
def test_dead_letters_of_several_reasons_are_listed_together(reasons: tuple[Reason, ...], taken: list[str]) -> None:
    dead_letters = [ListedDeadLetter(0, 0, None, b"", 0, {"reason": reason}) for reason in ("failed", "crashed", "rejected")]
    wanted = DeadLetterSelection("shop", "ship", frozenset(reasons))

    assert [*taken, *([] if reasons else ["rejected"])] == [
        dead_letter.reason for dead_letter in dead_letters if wanted.matches(dead_letter)
    ]


def test_earlier_offset_of_a_partition_is_older_at_equal_times() -> None:
    oldest = OldestDeadLetters(2)
    oldest.add([ListedDeadLetter(0, offset, None, None, 5, {}) for offset in (2, 0, 1)])

    assert [0, 1] == [one.dead_letter.offset for one in oldest.shown()]


def test_replay_receipt_applies_only_to_its_own_subscriber() -> None:
    dead_letter = ListedDeadLetter(0, 0, b"o1", b"{}", 0, {"reason": "failed"})
    receipt = ListedDeadLetter(
        0, 1, None, dead_letter.digest().encode(), 0, {RECEIPT_HEADER: DeadLetterSelection("shop", "ship").address}
    )

    assert [dead_letter.digest()] == receipt.receipt(DeadLetterSelection("shop", "deliver", renamed="ship").address)
    assert (
        []
        == receipt.receipt(DeadLetterSelection("shop", "thank").address)
        == dead_letter.receipt(DeadLetterSelection("shop", "ship").address)
    )


def test_unknown_fold_error_lists_the_subscribers(tmp_path: Path) -> None:
    config = tmp_path / "streams.toml"
    config.write_text('app_id = "shop"\n[events]\ncatalogue = "examples.shop:catalogue"\n')
    ran = CliRunner().invoke(group, ["dead-letters", "list", "--config", str(config)])

    assert "name a subscriber with --subscriber: ship" in str(ran.exception)


@pytest.mark.parametrize("key", [b"K" * 400_000, b"\xff" * 400_000, b"\n" * 400_000])
def test_long_key_is_shortened_for_people_and_whole_for_programs(key: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    headers = {"reason": "not-json", "source-topic": "s", "source-partition": "0", "source-offset": "1"}
    one = ShownDeadLetter(ListedDeadLetter(0, 1, key, b"no json", 7, headers))
    _print(one, as_json=False, is_late=False, is_replayed=False)
    for_people = capsys.readouterr().out
    _print(one, as_json=True, is_late=False, is_replayed=False)

    assert len(for_people) < 400
    assert "…" in for_people
    assert key.decode("utf-8", "backslashreplace") == json.loads(capsys.readouterr().out)["key"]
