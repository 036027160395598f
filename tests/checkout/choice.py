"""Chooses among the tests of a run those that are nearest to a change, at most so many of each kind (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self
from zlib import crc32

from _pytest.mark.expression import Expression

KINDS = ("short", "long", "simulation")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A test of the run.

    Attributes:
        name: Its node id.
        kind: One of :data:`KINDS`.
        breaks: Ends of the paths of the files that it changes, if it is a broken variant.
    """

    name: str
    kind: str
    breaks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reached:
    """What a change reaches, as ``python -m tests.checkout.changed --all`` writes it.

    Attributes:
        seed: Decides among tests that are equally near, differently with each change.
        changed: Changed files.
        distance: Test file → its distance from the change.
    """

    seed: int
    changed: tuple[str, ...] = ()
    distance: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Self:
        found = json.loads(text)
        return cls(found["seed"], tuple(found["changed"]), found["distance"])

    def distance_of(self, test: Candidate) -> int | None:
        """Return the distance of a test, or None if the change does not reach it."""
        if test.breaks and any(path.endswith(test.breaks) for path in self.changed):
            return 0
        return self.distance.get(test.name.partition("::")[0])


def limits_of(text: str) -> dict[str, int]:
    """Return kind → how many tests of it run at most, from ``long=60 simulation=150``.

    Raises:
        ValueError: There is no such kind, or its limit is no number.
    """
    found = {kind: int(number) for kind, _, number in (word.partition("=") for word in text.split())}
    if unknown := found.keys() - set(KINDS):
        raise ValueError(f"no kind of tests: {', '.join(sorted(unknown))}; kinds are {', '.join(KINDS)}")
    return found


def fault_of(option: str, words: str) -> str:
    """Return what is wrong with the value of ``-k`` or ``-m``; "" if nothing is."""
    try:
        Expression.compile(words)
    except SyntaxError as error:
        return f"{option} {words!r} at column {error.offset}: {error.msg}; join the words of a name by `and`"
    return ""


def chosen(tests: Iterable[Candidate], limits: Mapping[str, int], reached: Reached) -> set[str]:
    """Return the names of the tests that run: those without a limit, and the nearest of each kind that has one."""
    given = list(tests)
    found = {test.name for test in given if test.kind not in limits}
    for kind, limit in limits.items():
        near = {test.name: distance for test in given if test.kind == kind and (distance := reached.distance_of(test)) is not None}
        found |= set(sorted(near, key=lambda name: (near[name], crc32(f"{reached.seed} {name}".encode())))[:limit])
    return found
