"""Every deliberately broken variant quotes lines that the product contains, and its replacement can run."""

from __future__ import annotations

import builtins
import dis
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import streams_app
from tests.simulation.mutants import Mutant, function_at

SIMULATION = Path(__file__).parents[2] / "simulation"
WORDS = {word for path in Path(streams_app.__file__).parent.rglob("*.py") for word in re.findall(r"\w+", path.read_text("utf-8"))}
"""Words of the package: an attribute that a replacement uses is one of them, so that a renamed attribute is detected."""

NOT_OURS = {"_consumer_group_generation_id", "Semaphore"}
"""Attributes of libraries that only replacements use."""

MODULES = sorted(path.stem for pattern in ("mutants_*.py", "test_*_schedules.py") for path in SIMULATION.glob(pattern))


def variants() -> list[Mutant]:
    """Return all variants, wherever they are declared; a list that another module imports is counted once."""
    found: dict[str, Mutant] = {}
    for name in MODULES:
        for value in vars(importlib.import_module(f"tests.simulation.{name}")).values():
            if isinstance(value, tuple):
                found |= {one.name: one for one in value if isinstance(one, Mutant)}
    return list(found.values())


def global_names(code: CodeType) -> Iterator[str]:
    """Return the global names that a function reads."""
    yield from (one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from global_names(inner)


def attribute_names(code: CodeType) -> set[str]:
    """Return the names of the attributes and methods that a function uses."""
    found = {one.argval for one in dis.get_instructions(code) if one.opname.endswith(("_ATTR", "_METHOD"))}
    return found.union(*(attribute_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


@pytest.mark.parametrize("mutant", variants(), ids=lambda mutant: mutant.name)
def test_broken_variant_still_applies_to_the_source(mutant: Mutant) -> None:
    undefined: set[str] = set()
    places = [change.where for change in mutant.changes if not change.where.endswith(".lua")]
    before = {where: attribute_names(function_at(where)[1].__code__) for where in places}
    with mutant.applied():
        for where in places:
            module, function = function_at(where)
            undefined |= set(global_names(function.__code__)) - vars(module).keys() - vars(builtins).keys()
            undefined |= attribute_names(function.__code__) - before[where] - WORDS - NOT_OURS

    assert mutant.changes
    assert undefined == set()
