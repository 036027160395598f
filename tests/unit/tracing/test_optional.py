"""OpenTelemetry is required only if tracing is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streams_app import Catalogue, Events
from streams_app.errors import ConfigurationError
from streams_app.settings import Settings
from streams_app.tracing import tracing_of
from streams_app.worker import runtime
from tests.checkout.imports import ROOT

FOLD = {"name": "f", "source": "s", "group_key": "a", "changed": "b", "quiet_period": "1s"}


def settings_of(**tracing: Any) -> Settings:
    return Settings.model_validate({"app_id": "shop", "folds": [FOLD], "tracing": tracing})


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("opentelemetry", "streams_app.tracing.spans"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)


@pytest.mark.usefixtures("without_package")
def test_tracing_without_its_package_is_a_configuration_error_that_names_the_extra() -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'streams_app\[otel\]'"):
        tracing_of(settings_of(enabled=True))
    with pytest.raises(ConfigurationError, match="otel"):
        Events(settings_of(enabled=True), Catalogue())
    with pytest.raises(ConfigurationError, match="otel"):
        runtime.serve(settings_of(enabled=True))


@pytest.mark.usefixtures("without_package")
def test_disabled_tracing_needs_no_package() -> None:
    assert None is tracing_of(settings_of())
    assert None is tracing_of(settings_of(enabled=False))


def test_disabled_tracing_is_not_imported() -> None:
    program = (
        "import sys, streams_app.worker.runtime, streams_app.events.publishing, streams_app.cli.worker\n"
        "print([name for name in sys.modules if name.startswith('streams_app.tracing.')])"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)

    assert "[]" == ran.stdout.strip()


def test_tracing_is_a_setting_of_the_file_and_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    text = 'app_id = "shop"\n[folds.f]\nsource = "s"\ngroup_key = "a"\nchanged = "b"\nquiet_period = "1s"\n'
    path.write_text(text + "[tracing]\nenabled = true\n")

    assert Settings.load(path, {}).tracing.enabled
    assert not Settings.load(path, {"STREAMS_APP_TRACING_ENABLED": "false"}).tracing.enabled
    path.write_text(text + "[tracing]\nenable = true\n")
    with pytest.raises(ConfigurationError, match="enabled"):
        Settings.load(path, {})
