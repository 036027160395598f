"""Every deliberately broken variant quotes lines that the product still has."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.chaos.mutants import Mutant

MODULES = sorted(path.stem for path in (Path(__file__).parents[2] / "chaos").glob("mutants_*.py"))


def variants() -> list[Mutant]:
    """All of them, wherever they are declared; a list that another module imports is counted once."""
    found: dict[str, Mutant] = {}
    for name in MODULES:
        for value in vars(importlib.import_module(f"tests.chaos.{name}")).values():
            if isinstance(value, tuple):
                found |= {one.name: one for one in value if isinstance(one, Mutant)}
    return list(found.values())


@pytest.mark.parametrize("mutant", variants(), ids=lambda mutant: mutant.name)
def test_a_broken_variant_can_still_be_made(mutant: Mutant) -> None:
    with mutant.applied():
        assert mutant.changes
