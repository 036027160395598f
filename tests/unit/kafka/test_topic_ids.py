"""Types of our own request for the ids of topics."""

from __future__ import annotations

from io import BytesIO

import pytest

from streams_app.kafka.topic_ids import _Tags  # the request cannot be sent without a broker


@pytest.mark.parametrize(
    ("sent", "tags"),
    [(b"\x00", {}), (b"\x02\x00\x01a\x81\x01\x02bc", {0: b"a", 129: b"bc"}), (b"\x01\x05\x80\x01" + b"x" * 128, {5: b"x" * 128})],
)
def test_tagged_fields_are_skipped_with_any_content(sent: bytes, tags: dict[int, bytes]) -> None:
    data = BytesIO(sent + b"next")

    assert tags == _Tags.decode(data)
    assert b"next" == data.read()


def test_request_has_no_tagged_field() -> None:
    assert b"\x00" == _Tags.encode({})
