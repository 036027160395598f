"""The unit tests that a change reaches, which `make check` runs."""

from __future__ import annotations

import pytest

from tests.checkout.changed import DOCS, UNIT, reached_tests
from tests.checkout.imports import ROOT


def names(*changed: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in reached_tests([ROOT / name for name in changed])}


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ("streams_app/live/core/model.py", "tests/unit/live/core/test_state.py"),
        ("streams_app/read_store/sqlite/errors.py", "tests/unit/read_store/test_registry.py"),
        ("streams_app/cli/tune.py", "tests/unit/cli/test_tune_command.py"),
        ("streams_app/folding/store/lua/fold.lua", "tests/unit/folding/shard/test_range_progress.py"),
        ("tests/unit/test_codec.py", "tests/unit/test_codec.py"),
        ("tests/conftest.py", "tests/unit"),
        ("docs/semantics.md", "tests/unit/docs"),
        ("constraints.txt", "tests/unit"),
        ("streams_app/folded-record.schema.json", "tests/unit"),
    ],
)
def test_change_reaches_the_tests_that_import_it_by_whatever_way(changed: str, reached: str) -> None:
    assert reached in names(changed)


def test_change_of_one_module_does_not_reach_the_tests_of_others() -> None:
    reached = names("streams_app/tuning/plot.py")

    assert "tests/unit/cli/test_tune_command.py" in reached
    assert not [name for name in reached if name.startswith(("tests/unit/delivery", "tests/unit/live"))]


def test_change_of_a_deployment_file_reaches_the_tests_of_the_docs_only() -> None:
    assert {DOCS} == reached_tests([ROOT / "deploy" / "alerts.yml"])
    assert set() == reached_tests([])
    assert UNIT not in reached_tests([ROOT / "README.md"])
