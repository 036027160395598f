"""Tests that take long begin."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.checkout.imports import ROOT
from tests.checkout.order import LONGEST, ordered


@dataclass(frozen=True)
class Named:
    nodeid: str


LONG = [Named(f"tests/integration/{name}::test_{number}") for name in sorted(LONGEST) for number in range(3)]
SHORT = [Named(f"tests/unit/test_fold.py::test_{number}") for number in range(1_000)]


def test_each_of_the_longest_files_exists() -> None:
    assert [] == [name for name in LONGEST if not (ROOT / "tests" / "integration" / name).is_file()]


@pytest.mark.parametrize("processes", [1, 2, 4, 6])
def test_share_of_each_process_begins_with_long_tests(processes: int) -> None:
    tests = [*LONG, *SHORT]
    found = ordered(tests, processes)
    shares = [found[number * len(tests) // processes :][: len(tests) // processes] for number in range(processes)]
    longest = [sum(test in LONG for test in share) for share in shares]

    assert set(tests) == set(found)
    assert len(tests) == len(found)
    assert [] == [share[0] for share, number in zip(shares, longest, strict=True) if not {*share[1 : number - 1]} <= {*LONG}]
    assert max(longest) - min(longest) <= 3 + 1


def test_tests_of_a_file_stay_together_in_their_order() -> None:
    found = [test for test in ordered([*LONG, *SHORT], 6) if test in LONG]

    files = [test.nodeid.partition("::")[0] for test in found]
    assert files[::3] == files[1::3] == files[2::3]
    assert ["0", "1", "2"] * len(LONGEST) == [test.nodeid[-1] for test in found]


@pytest.mark.parametrize("tests", [[], LONG, SHORT, LONG[:1], SHORT[:2]], ids=["none", "long", "short", "one", "two"])
def test_no_test_is_left_out(tests: list[Named]) -> None:
    assert sorted(tests, key=str) == sorted(ordered(tests, 6), key=str)
