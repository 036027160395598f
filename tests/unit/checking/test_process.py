"""Findings of `check` about the process of a worker: HTTP pages, tracing, and the native core."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from streams_app.checking.process import http_finding, native_finding, tracing_finding
from streams_app.errors import ConfigurationError
from streams_app.finding import Level
from streams_app.native import native_core
from streams_app.settings import HttpSettings, Settings
from tests.helpers.folding.native import required_core

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


def native_settings(native: str, **fold: Any) -> Settings:
    return Settings.model_validate({"app_id": "shop", "folds": [{**FOLD, **fold}], "worker": {"native": native}})


def test_native_core_is_no_finding_if_it_is_off_or_of_no_use() -> None:
    assert native_finding(native_settings("off")) is None
    assert native_finding(native_settings("auto", keep="last")) is None


@pytest.mark.parametrize("choice", ["auto", "require"])
def test_installed_native_core_is_reported(choice: str) -> None:
    required_core()
    found = native_finding(native_settings(choice, keep="names"))

    assert found is not None
    assert (Level.OK, "folds of names in JSON are read by the native core") == (found.level, found.text)


@pytest.mark.parametrize(("choice", "level"), [("auto", Level.OK), ("require", Level.ERROR)])
def test_absent_native_core_is_an_error_only_if_it_is_required(monkeypatch: pytest.MonkeyPatch, choice: str, level: Level) -> None:
    monkeypatch.setitem(sys.modules, "streams_app_native", None)
    found = native_finding(native_settings(choice))

    assert found is not None
    assert level is found.level
    assert "the native core cannot be imported" in found.text


@pytest.mark.parametrize("module", [None, type(sys)("other")])
def test_worker_without_the_native_core_that_it_requires_does_not_start(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    if module is not None:
        module.VERSION = "9.9.9"
    monkeypatch.setitem(sys.modules, "streams_app_native", module)

    assert native_core("auto") is None
    assert native_core("off") is None
    with pytest.raises(ConfigurationError, match=r'worker.native is "require", but .*pip install'):
        native_core("require")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "worker.example", ""])
def test_pages_reachable_from_the_network_need_a_token(host: str, tmp_path: Path) -> None:
    open_to_all = http_finding(HttpSettings(host=host))

    assert Level.WARNING is open_to_all.level
    assert "http.token_file" in open_to_all.advice
    assert Level.OK is http_finding(HttpSettings(host=host, token_file=tmp_path / "token")).level


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.5", "::1", "localhost"])
def test_pages_on_loopback_need_no_token(host: str) -> None:
    assert Level.OK is http_finding(HttpSettings(host=host)).level
