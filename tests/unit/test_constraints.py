"""The versions of constraints.txt can be installed on the oldest Python."""

from __future__ import annotations

from importlib.metadata import distributions

from packaging.specifiers import SpecifierSet

OLDEST = "3.11.0"


def test_every_installed_version_accepts_the_oldest_python() -> None:
    required = {one.name: "".join(one.metadata.get_all("Requires-Python", [])) for one in distributions()}

    assert len(required) > 50
    assert {} == {name: given for name, given in required.items() if not SpecifierSet(given).contains(OLDEST)}
