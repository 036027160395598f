"""Values of paths and queries are checked before they are used."""

from __future__ import annotations

import pytest

from streams_app.console.reading.asking import MAX_TEXT, Asked, PageError


@pytest.mark.parametrize("value", ["0", "201", "-1", "1.5", "x", "", "\u0663", "9" * 10, " 1", "1e1"])
def test_number_that_is_none_or_out_of_range_is_rejected(value: str) -> None:
    with pytest.raises(PageError, match="a number from 1 to 200") as error:
        Asked({}, {"page": value}).number("page", 1, 1, 200)

    assert 400 == error.value.status


def test_number_and_choice_have_defaults() -> None:
    asked = Asked({}, {})

    assert (3, "quiet", "") == (asked.number("page", 3, 1, 9), asked.choice("sort", ["quiet"], "quiet"), asked.text("key"))


def test_word_that_is_no_choice_is_rejected_and_not_repeated() -> None:
    with pytest.raises(PageError, match=r"^sort must be one of a, b$"):
        Asked({}, {"sort": "<script>"}).choice("sort", ["a", "b"], "a")


def test_text_that_is_too_long_is_rejected() -> None:
    assert MAX_TEXT == len(Asked({}, {"key": "k" * MAX_TEXT}).text("key"))
    with pytest.raises(PageError, match="too long"):
        Asked({}, {"key": "k" * (MAX_TEXT + 1)}).text("key")


def test_unknown_name_is_not_found_and_a_similar_one_suggested() -> None:
    with pytest.raises(PageError, match="no fold 'foldd', did you mean 'fold'") as error:
        Asked({"fold": "foldd"}, {}).named("fold", ["fold"], "fold")

    assert 404 == error.value.status
