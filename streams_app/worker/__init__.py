"""The worker process: the Faust application, the other components, signals and exit codes, and the watchdog.

``app``, for ``faust -A streams_app.worker worker``, reads its settings from ``STREAMS_APP_CONFIG`` or ``./streams.toml``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams_app.worker.faust_app import FoldingApp


def __getattr__(name: str) -> FoldingApp:
    # The application is created at the first access, because importing a module of this package must not load settings.
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from streams_app.settings import Settings
    from streams_app.worker.faust_app import create_app

    application = create_app(Settings.load(None, os.environ))
    globals()[name] = application
    return application
