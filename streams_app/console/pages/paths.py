"""Paths of the pages of everything that has a name in the settings (pure)."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

WORKERS_PATH: Final = "/workers"


def fold_path(name: str) -> str:
    """Return the path of the page of a fold."""
    return f"/folds/{quote(name, safe='')}"


def subscriber_path(name: str) -> str:
    """Return the path of the page of a subscriber."""
    return f"/subscribers/{quote(name, safe='')}"


def store_path(name: str) -> str:
    """Return the path of the page of a read store."""
    return f"/read-stores/{quote(name, safe='')}"


def view_path(name: str) -> str:
    """Return the path of the page of a live view."""
    return f"/live/{quote(name, safe='')}"


def journal_path(name: str) -> str:
    """Return the path of the page of a journal."""
    return f"/journals/{quote(name, safe='')}"


OF_ALERTS: Final = {"subscriber": subscriber_path, "store": store_path, "view": view_path, "journal": journal_path}
"""The function for each kind of :class:`.Alert` whose name is that of one component."""
