"""Event folding for Kafka: a storm of update events in, one folded record per group out.

Public names: :class:`Fold`, :class:`Settings`, :func:`create_app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streams_app.fold import Fold
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.app import FoldingApp

__all__ = ["Fold", "Settings", "create_app"]


def create_app(settings: Settings) -> FoldingApp:
    """The Faust application for these settings, see :func:`streams_app.app.create_app`."""
    # Faust and aiokafka take a second to import; who only declares folds need not wait for them.
    from streams_app.app import create_app as create

    return create(settings)
