"""A ``streams.toml`` for tests, and the loaded settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from streams_app.errors import ConfigurationError
from streams_app.settings import Settings

MINIMAL = """
app_id = "social"
[folds.account-metrics]
source = "post-metric-updated"
group_key = "account_id"
changed = "metrics"
quiet_period = "15m"
"""

READ_STORE = """
[read_stores.dashboard]
url = "sqlite:///read.db"
folds = ["account-metrics"]
source_url = "sqlite:///write.db"
sql = "SELECT 1, 2, 3"
"""

SECOND = """
[folds.second]
source = "post-metric-updated"
group_key = "post_id"
changed = "metrics"
quiet_period = "1m"
"""


def load(file: Path, text: str = MINIMAL, environ: Mapping[str, str] | None = None) -> Settings:
    file.write_text(text, "utf-8")
    return Settings.load(file, environ or {})


def faults(file: Path, text: str = MINIMAL, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(file, text, environ)
    return caught.value.faults
