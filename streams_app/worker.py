"""``app`` for ``faust -A streams_app.worker worker``; configured by ``STREAMS_APP_CONFIG`` or ``./streams.toml``."""

from __future__ import annotations

import os

from streams_app.app import create_app
from streams_app.settings import Settings

app = create_app(Settings.load(None, os.environ))
