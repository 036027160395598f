"""What a newer version has written is not read: commits, read stores and state in Redis."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.offset_metadata import check_format
from streams_app.errors import NewerFormatError, check_state_format
from streams_app.read_store.core.store import check_formats, format_of
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_formats import FORMATS

TP0 = TP("t", 0)
CHECKS = [
    lambda number: check_format(TP0, f"@{number};"),
    lambda number: check_formats("s", {TP0: 5, format_of(TP0): number}),
    lambda number: check_state_format("state", b"%d" % number),
]


@pytest.mark.parametrize("check", CHECKS, ids=["commit", "read store", "state"])
def test_only_a_newer_format_is_refused(check: Callable[[int], None]) -> None:
    check(1)
    with pytest.raises(NewerFormatError, match="has format 99"):
        check(99)


@pytest.mark.parametrize(("check", "mutant"), [*zip(CHECKS, FORMATS, strict=True)], ids=[mutant.name for mutant in FORMATS])
def test_missing_check_of_a_format_is_detected(check: Callable[[int], None], mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_only_a_newer_format_is_refused(check)
