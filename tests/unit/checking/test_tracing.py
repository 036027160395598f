"""Findings of `check` about tracing."""

from __future__ import annotations

import sys

import pytest

from streams_app.checking.finding import Level
from streams_app.checking.tracing import tracing_finding
from streams_app.settings import Settings

FOLD = {"name": "f", "source": "s", "group_key": "a", "changed": "b", "quiet_period": "1s"}


def settings_of(*, enabled: bool) -> Settings:
    return Settings.model_validate({"app_id": "shop", "folds": [FOLD], "tracing": {"enabled": enabled}})


def test_disabled_tracing_is_no_finding() -> None:
    assert None is tracing_finding(settings_of(enabled=False))


def test_enabled_tracing_is_reported() -> None:
    found = tracing_finding(settings_of(enabled=True))

    assert found is not None
    assert Level.OK is found.level


def test_tracing_without_its_package_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "streams_app.tracing.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    found = tracing_finding(settings_of(enabled=True))

    assert found is not None
    assert (Level.ERROR, "pip install 'streams_app[otel]'") == (found.level, found.advice)
