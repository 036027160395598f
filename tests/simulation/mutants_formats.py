"""Broken variants of the check of formats: what a newer version has written is read as if this version had written it."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant

FORMATS: Final = (
    Mutant(
        "a commit of a newer format is read",
        "A worker reads positions that it does not understand, and starts at others.",
        (),
        (
            Change(
                "delivery.offset_metadata:check_format", "if found is not None and int(found[1]) > FORMAT:",
                "if not isinstance(tp, TP):",
            ),
        ),
    ),
    Mutant(
        "a store of a newer format is read",
        "Commands compare, repair and replace values that they do not understand.",
        (),
        (
            Change(
                "read_store.core.store:check_format", "if (found := checkpoints.get(format_of(tp), FORMAT)) > FORMAT:",
                "if (found := FORMAT) > FORMAT:",
            ),
        ),
    ),
    Mutant(
        "state of a newer format is read",
        "Commands show wrong groups and segments.",
        (),
        (
            Change(
                "errors:check_state_format", "if stored is not None and not is_readable_format(stored):",
                "if not what:",
            ),
        ),
    ),
)  # fmt: skip
"""No schedule has a newer version: the test of the rule fails with each."""
