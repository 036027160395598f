"""The names that users import from ``streams_app``."""

from __future__ import annotations

import pytest

import streams_app


@pytest.mark.parametrize("name", streams_app.__all__)
def test_public_name_can_be_imported(name: str) -> None:
    assert getattr(streams_app, name).__module__.startswith("streams_app")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = streams_app.Nothing
