"""The command ``worker``, up to the start of its worker."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from click.testing import CliRunner

from streams_app.cli import group, worker
from streams_app.errors import ConfigurationError


def test_garbage_collection_is_off_while_an_application_is_imported_and_on_after_it_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def named(*_: Any) -> None:
        seen.append(gc.isenabled())
        raise ConfigurationError(["the module cannot be imported"])

    monkeypatch.setattr(worker, "named", named)
    result = CliRunner().invoke(group, ["worker", "--app", "nothing:app"])

    assert isinstance(result.exception, ConfigurationError)
    assert [False, True] == [*seen, gc.isenabled()]
