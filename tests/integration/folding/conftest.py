"""Fixtures of the tests of folds."""

from __future__ import annotations

import pytest

from tests.helpers.folding.scripts import FormPacker


@pytest.fixture(params=[False, True], ids=["hashes", "packed"])
def each_form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test twice: every group is stored as a hash, and small ones are packed. Return whether they are."""
    monkeypatch.setattr(FormPacker, "stores_packed", request.param)
    return bool(request.param)
