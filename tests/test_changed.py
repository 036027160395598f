"""The tests that a change reaches, and the choice among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkout.changed import DOCS, UNIT, distances_of_tests, nearest_first, reached_tests
from tests.checkout.choice import Candidate, Reached, chosen, fault_of, limits_of
from tests.checkout.imports import ROOT, FileNames, names_in


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
        ("docs/reference/folds.md", "tests/unit/docs"),
        ("docs/zensical.toml", "tests/unit/docs"),
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


def test_file_is_parsed_only_if_it_has_changed_since_its_names_were_stored(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text('import json\nNAME = "streams_app.cli.tune"\n')
    read = names_in(file, FileNames("the stamp of an earlier version", ["stored"], [], []))
    unchanged = names_in(file, read._replace(imports=["stored"]))

    assert (["json"], ["streams_app.cli.tune"]) == (read.imports, read.texts)
    assert ["stored"] == unchanged.imports


def test_the_nearest_of_the_reached_tests_come_first() -> None:
    changed = ["streams_app/settings/sections.py", "tests/unit/test_codec.py", "docs/reference/settings.md"]
    found = [str(path.relative_to(ROOT)) for path in nearest_first([ROOT / name for name in changed])]
    far = "tests/unit/console/actions/test_openapi.py"

    assert {"tests/unit/docs", "tests/unit/test_codec.py"} < set(found[:20])
    assert found.index("tests/unit/settings/test_settings.py") < found.index(far)
    assert names(*changed) == set(found)


# All tests


def distances(*changed: str) -> dict[str, int]:
    return {str(path.relative_to(ROOT)): near for path, near in distances_of_tests([ROOT / name for name in changed]).items()}


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ("streams_app/journal/store/journal_store.py", "tests/integration/journal/reading/test_broken_readers.py"),
        ("streams_app/journal/store/journal_store.py", "tests/integration/worker/test_watchdog.py"),
        ("streams_app/journal/store/lua/append.lua", "tests/simulation/test_journal_schedules.py"),
        ("streams_app/worker/components.py", "tests/integration/folding/test_folding.py"),
        ("streams_app/live/web/live.js", "tests/integration/live/hub/test_browser.py"),
        ("streams_app/live/hub/hub.py", "tests/integration/docs/test_example_project_page.py"),
        ("tests/simulation/conftest.py", "tests/simulation/test_mutants.py"),
        ("docs/reference/folds.md", "tests/integration/docs/test_alerts_fire.py"),
        ("constraints.txt", "tests/integration/kafka/test_security.py"),
    ],
)
def test_change_reaches_integration_tests_by_imports_rooms_and_the_program(changed: str, reached: str) -> None:
    assert reached in distances(changed)


def test_change_of_one_kind_of_component_reaches_few_tests_of_others() -> None:
    near = distances("streams_app/live/hub/hub.py")

    assert not [name for name in near if name.startswith(("tests/integration/read_store", "tests/integration/subscribers"))]
    assert near["tests/integration/live/hub/test_browser.py"] < near["tests/integration/redis_access/test_failover.py"]


REACHED = Reached(1, ("streams_app/delivery/claim.py",), {"tests/a.py": 1, "tests/b.py": 3})


def long(*names: str) -> list[Candidate]:
    return [Candidate(name, "long") for name in names]


def test_choice_takes_the_nearest_tests_and_none_that_the_change_does_not_reach() -> None:
    tests = long("tests/b.py::test_x", "tests/c.py::test_x", "tests/a.py::test_x", "tests/a.py::test_y[tests/b.py::z]")

    assert chosen(tests, {"long": 2}, REACHED) == {"tests/a.py::test_x", "tests/a.py::test_y[tests/b.py::z]"}
    assert chosen(tests, {"long": 9}, REACHED) == {test.name for test in tests} - {"tests/c.py::test_x"}
    assert chosen(tests, {"short": 0}, REACHED) == {test.name for test in tests}


def test_choice_among_equally_near_tests_differs_between_changes() -> None:
    tests = long(*(f"tests/a.py::test_{number}" for number in range(40)))
    choices = [chosen(tests, {"long": 10}, Reached(seed, (), {"tests/a.py": 1})) for seed in (1, 1, 2)]

    assert choices[0] == choices[1] != choices[2]
    assert {10} == set(map(len, choices))


def test_broken_variant_of_a_changed_file_comes_first() -> None:
    near = Candidate("tests/b.py::test_caught[no fence]", "simulation", ("delivery/claim.py",))
    far = [Candidate(f"tests/b.py::test_caught[{number}]", "simulation", ("/fold.lua",)) for number in range(40)]

    assert chosen([*far, near], {"simulation": 1}, REACHED) == {near.name}


def test_limit_of_an_unknown_kind_is_rejected() -> None:
    assert {"long": 60, "simulation": 40} == limits_of("long=60 simulation=40")
    with pytest.raises(ValueError, match="no kind of tests: lnog"):
        limits_of("lnog=60")


@pytest.mark.parametrize("words", ["", "no and chain and rule", "not long", "test_x[a-b] or (c and not d)"])
def test_selection_that_pytest_understands_has_no_fault(words: str) -> None:
    assert not fault_of("-k", words)


@pytest.mark.parametrize("words", ["no chain rule", "not", "a segment's form"])
def test_selection_that_pytest_rejects_is_reported_with_advice(words: str) -> None:
    assert fault_of("-k", words).startswith(f"-k {words!r} at column")
    assert fault_of("-k", words).endswith("join the words of a name by `and`")
