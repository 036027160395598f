"""Settings of local mode for tests that wait for retries and commits."""

from __future__ import annotations

from datetime import timedelta

from streams_app import Catalogue
from streams_app.local.settings import settings_of
from streams_app.settings import Settings, WorkerSettings

OFTEN = timedelta(milliseconds=20)


def quick_settings(catalogue: Catalogue) -> Settings:
    """Return the default settings of local mode, with retries that are due and commits 50 times a second."""
    return settings_of("local", catalogue).model_copy(update={"worker": WorkerSettings(tick=OFTEN, commit_every=OFTEN)})
