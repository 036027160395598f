"""The order of the tests: those that take longest begin, so that none of them runs alone at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

LONGEST: Final = (
    "console/test_console_action_browser.py",
    "console/test_console_browser.py",
    "console/test_console_accessibility.py",
    "docs/test_consumers.py",
    "docs/test_tutorial.py",
    "docs/test_distributions.py",
    "demo/test_demo.py",
    "cli/test_every_command.py",
    "redis_access/test_cluster_changes.py",
    "redis_access/test_sentinel.py",
    "redis_access/test_rights.py",
    "redis_access/test_failover.py",
    "subscribers/running/test_shutdown.py",
    "subscribers/running/test_replay.py",
    "subscribers/guarantees/test_at_least_once.py",
    "folding/test_formats_killed.py",
    "docs/test_example_project_page.py",
    "docs/test_example_shop.py",
    "docs/test_dashboard_shows.py",
    "read_store/test_after_reset.py",
    "read_store/test_access.py",
    "read_store/test_verify.py",
    "console/test_console_actions.py",
    "console/test_console_component_actions.py",
    "console/test_console_pages.py",
    "schemas/test_views_and_journals.py",
    "schemas/test_worker.py",
    "operations/test_events_explain.py",
    "journal/test_worker.py",
    "live/test_worker.py",
    "live/hub/test_browser.py",
    "health/test_http_connections.py",
)
"""Files of `tests/integration` that have a test of more than ten seconds, see ``make test ARGS=--durations=30``."""


class HasNodeId(Protocol):
    @property
    def nodeid(self) -> str: ...


Test = TypeVar("Test", bound=HasNodeId)


def ordered(tests: Sequence[Test], processes: int) -> list[Test]:
    """Return the tests in an order in which the share of each process begins with some of the longest.

    At first, each process of ``xdist --dist worksteal`` receives an equal number of consecutive tests. Those of a file stay
    together, because they share fixtures.
    """
    longest: defaultdict[str, list[Test]] = defaultdict(list)
    others: list[Test] = []
    for test in tests:
        name = test.nodeid.partition("::")[0].removeprefix("tests/integration/")
        (longest[name] if name in LONGEST else others).append(test)
    files = [longest[name] for name in LONGEST if name in longest]
    found: list[Test] = []
    for process in range(processes):
        first = [test for file in files[process::processes] for test in file]
        size = (len(tests) - len(found)) // (processes - process)
        found += [*first, *others[: max(0, size - len(first))]]
        del others[: max(0, size - len(first))]
    return [*found, *others]
