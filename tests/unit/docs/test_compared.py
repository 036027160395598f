"""The cases of docs/explained/compared.md: how other systems handle bursts of events, and what a fold does."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.comparison.cases import Case
from benchmarks.comparison.page import CASES, PAGE, written


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.project}: {case.name}")
def test_case_behaves_as_the_table_says(case: Case) -> None:
    case.run()


def test_page_has_the_table_of_the_cases() -> None:
    assert written() == PAGE.read_text("utf-8"), "run make docs"


def test_at_least_forty_cases_of_five_projects_are_unique_and_have_a_source() -> None:
    projects = Counter(case.project for case in CASES)

    assert 40 <= len(CASES) == len({(case.project, case.name) for case in CASES})
    assert {"Inngest", "Windmill", "Trigger.dev", "BullMQ", "Kafka Streams"} == projects.keys()
    assert all(case.url.startswith("https://") for case in CASES)
