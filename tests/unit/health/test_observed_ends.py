"""How long the oldest record has waited, from the observed ends of a log."""

from __future__ import annotations

import pytest

from streams_app.health.observed_ends import MAX_SEEN, ObservedEnds, age_ms


def seen(*ends: tuple[int, int]) -> ObservedEnds:
    made = ObservedEnds()
    for end, now_ms in ends:
        made.observe(end, now_ms)
    return made


@pytest.mark.parametrize(
    ("ends", "position", "expected"),
    [
        ([], 0, None),
        ([(5, 10)], 5, None),
        ([(5, 10)], 4, 10),
        ([(5, 10), (5, 20), (9, 30)], 4, 10),
        ([(5, 10), (9, 30)], 5, 30),
        ([(5, 10), (9, 30)], 8, 30),
        ([(50, 10), (3, 30)], 0, 30),
    ],
)
def test_record_waits_since_the_end_was_first_observed_beyond_it(
    ends: list[tuple[int, int]], position: int, expected: int | None
) -> None:
    assert expected == seen(*ends).since(position)


def test_observed_ends_are_bounded_and_include_the_oldest() -> None:
    ends = seen(*((number, number) for number in range(1, 100 * MAX_SEEN)))

    assert 1 == ends.since(0)
    assert len(ends._observed) <= MAX_SEEN


@pytest.mark.parametrize(("since", "expected"), [([], 0), ([None], 0), ([None, 70, 40], 60), ([130], 0)])
def test_age_is_that_of_the_oldest(since: list[int | None], expected: int) -> None:
    assert expected == age_ms(since, 100)
