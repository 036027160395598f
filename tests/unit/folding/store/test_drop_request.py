"""Requests to drop a group, as they are stored."""

from __future__ import annotations

import pytest

from streams_app.folding.store.drop_request import DropRequest, dropped_groups

REQUEST = DropRequest(17, "anna@host", 'a loop: "x"\n{[')


def test_drop_request_is_read_as_it_was_written_and_begins_with_its_offset() -> None:
    text = REQUEST.to_text()

    assert REQUEST == DropRequest.from_text(text)
    assert text.startswith("17 ")


@pytest.mark.parametrize("text", ["", "17", "17 ", "17 x", "17 3", '17 ["a"]', "x [1,2]", "17x", "\ufffd"])
def test_drop_request_written_by_hand_raises_nothing(text: str) -> None:
    assert DropRequest.from_text(text).first_offset in (17, -1)


def test_dropped_groups_of_a_reply_have_their_requests() -> None:
    values = [b"sa", b"17", b"19", b"2", REQUEST.to_text().encode(), b"sb", b"18", b"18", b"1", b"18 \xff"]

    assert [(b"sa", 17, 19, 2, REQUEST), (b"sb", 18, 18, 1, DropRequest(18, "unknown", "\ufffd"))] == dropped_groups(values)
    assert [] == dropped_groups([])
