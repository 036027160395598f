"""The versions of constraints.txt can be installed on the oldest Python."""

from __future__ import annotations

from importlib.metadata import distributions

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.checkout.imports import ROOT

OLDEST = "3.11.0"


def test_every_version_of_the_constraints_that_is_installed_accepts_the_oldest_python() -> None:
    constrained = set((ROOT / "constraints.txt").read_text("utf-8").split())
    required = {
        name: "".join(one.metadata.get_all("Requires-Python", []))
        for one in distributions()
        if (name := f"{canonicalize_name(one.name)}=={one.version}") in constrained
    }

    assert len(required) > 50
    assert {} == {name: given for name, given in required.items() if not SpecifierSet(given).contains(OLDEST)}
