"""The commit metadata of offsets above the committed one, and metadata that is not trusted."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.errors import NewerFormatError
from streams_app.subscribers.state.intervals import Interval
from streams_app.subscribers.state.offset_metadata import MAX_METADATA_BYTES, OffsetMetadata, decoded, encoded, fits, fitted
from streams_app.subscribers.state.offset_tracker import OffsetsAbove

LOW = 1_000
END = 10**9


@st.composite
def offsets_above(draw: st.DrawFn) -> OffsetsAbove:
    finished, begun, at = [], [], LOW
    is_first = True
    for distance, length, is_begun in draw(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 10_000), st.booleans()))):
        begin = at + distance - (is_begun and (is_first or distance % 2))
        is_first = False
        end = begin + (1 if is_begun else length)
        if is_begun:
            begun.append(begin)
        else:
            finished.append(Interval(begin, end))
        at = end
    return OffsetsAbove(tuple(finished), tuple(begun))


def forged(body: bytes, low: int = LOW) -> str:
    """Return metadata with any body and a correct checksum."""
    text = urlsafe_b64encode(body).decode().rstrip("=")
    return f"1..{text}.{crc32(f'{low}..{text}'.encode()):08x}"


@given(offsets_above())
def test_metadata_survives_a_round_trip(above: OffsetsAbove) -> None:
    metadata = OffsetMetadata("0b5e", above)

    assert metadata == decoded(encoded(LOW, metadata), LOW, END)


def test_empty_metadata_is_valid() -> None:
    assert OffsetMetadata("", OffsetsAbove()) == decoded(encoded(LOW, OffsetMetadata("", OffsetsAbove())), LOW, LOW)


@given(offsets_above(), st.data())
def test_metadata_with_a_changed_character_is_invalid(above: OffsetsAbove, data: st.DataObject) -> None:
    text = encoded(LOW, OffsetMetadata("0b5e", above))
    at = data.draw(st.integers(1, len(text) - 1))  # with another number at its begin, it would be of another format
    other = data.draw(st.sampled_from("abz019-_.~").filter(lambda character: character != text[at]))

    assert None is decoded(text[:at] + other + text[at + 1 :], LOW, END)


@pytest.mark.parametrize("text", ["", "1", "1...", "1...00000000", "{}", "~1;a=1", "0...00000000", "1.." + "A" * 5_000 + ".x"])
def test_other_text_is_invalid(text: str) -> None:
    assert None is decoded(text, LOW, END)


def test_metadata_with_another_offset_is_invalid() -> None:
    text = encoded(LOW, OffsetMetadata("", OffsetsAbove((Interval(LOW + 1, LOW + 2),))))

    assert None is decoded(text, LOW - 1, END)


@pytest.mark.parametrize("above", [OffsetsAbove((Interval(LOW + 1, LOW + 3),)), OffsetsAbove((), (LOW + 2,))])
def test_metadata_beyond_the_log_end_is_invalid(above: OffsetsAbove) -> None:
    text = encoded(LOW, OffsetMetadata("", above))

    assert [None, OffsetMetadata("", above)] == [decoded(text, LOW, LOW + 2), decoded(text, LOW, LOW + 3)]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (bytes([0, 4]), "the committed offset is finished"),
        (bytes([1, 4, 0, 4]), "two finished runs touch"),
        (bytes([1, 0]), "an empty run"),
        (bytes([1, 5]), "two offsets begun as one"),
        (bytes([1]), "a distance without a length"),
        (bytes([1, 0x80]), "a number that is cut off"),
        (bytes([0xFF] * 12), "a number beyond all offsets"),
    ],
)
def test_impossible_metadata_is_invalid(body: bytes, why: str) -> None:
    assert None is decoded(forged(body), LOW, END), why


def test_forged_but_plausible_metadata_is_valid() -> None:
    assert OffsetMetadata("", OffsetsAbove((Interval(LOW + 1, LOW + 3),))) == decoded(forged(bytes([1, 4])), LOW, END)


@given(st.binary(max_size=40))
def test_reader_survives_any_body(body: bytes) -> None:
    decoded(forged(body), LOW, END)


def test_thousand_intervals_fit_into_metadata() -> None:
    above = OffsetsAbove(tuple(Interval(LOW + 1 + 20 * number, LOW + 11 + 20 * number) for number in range(1_000)))

    assert OffsetMetadata("f" * 36, above) == decoded(fitted(LOW, OffsetMetadata("f" * 36, above)), LOW, END)
    assert MAX_METADATA_BYTES >= len(encoded(LOW, OffsetMetadata("f" * 36, above)))


def test_metadata_has_three_kilobytes_at_most() -> None:
    every_other = OffsetsAbove(tuple(Interval(offset, offset + 1) for offset in range(LOW + 1, LOW + 20_001, 2)))

    assert not fits(LOW, OffsetMetadata("topic", every_other))
    assert 2_990 < len(fitted(LOW, OffsetMetadata("topic", every_other))) <= 3_000


@pytest.mark.parametrize("text", ["2.id.AA.00000000", "99.", "99.anything~else"])
def test_metadata_of_a_newer_format_is_not_taken_for_invalid_metadata(text: str) -> None:
    with pytest.raises(NewerFormatError, match="commit metadata of a subscriber has format"):
        decoded(text, LOW, END)
