"""Checks whether the native core is used."""

from __future__ import annotations

from streams_app.checking.finding import Finding, Level
from streams_app.folding.reading.fast import is_usual
from streams_app.native import INSTALL, native_fault
from streams_app.settings import Settings


def native_finding(settings: Settings) -> Finding | None:
    """Check whether the native core can be used. Return None if it is off, or if no fold could use it and it is not required."""
    choice, could_use_it = settings.worker.native, any(map(is_usual, settings.folds))
    if choice == "off" or not (could_use_it or choice == "require"):
        return None
    fault = native_fault()
    if fault is None:
        return Finding(Level.OK, "folds of names in JSON are read by the native core")
    if choice == "require":
        return Finding(Level.ERROR, f'worker.native is "require", but {fault}', INSTALL)
    return Finding(Level.OK, f"events are read by Python: {fault}")
