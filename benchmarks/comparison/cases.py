"""The cases of a comparison, and how they run a fold in the test kit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from streams_app import Fold
from streams_app.testing import FoldTester

Verdict = Literal["same", "differs", "not done"]


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes:
        project: Whose case it is.
        name: The case in a few words.
        url: Its source.
        theirs: What the other project does.
        verdict: Whether a fold does the same.
        ours: What a fold does, and by which setting.
        run: Shows it in the test kit.
    """

    project: str
    name: str
    url: str
    theirs: str
    verdict: Verdict
    ours: str
    run: Callable[[], None]


class Cases(list[Case]):
    """The cases of one project."""

    def __init__(self, project: str) -> None:
        super().__init__()
        self._project = project

    def add(self, name: str, url: str, theirs: str, verdict: Verdict, ours: str) -> Callable[[Callable[[], None]], None]:
        """Add a case; the decorated function runs it."""

        def add(run: Callable[[], None]) -> None:
            self.append(Case(self._project, name, url, theirs, verdict, ours, run))

        return add


def tester(quiet_period: str = "5m", **options: Any) -> FoldTester:
    """A fold of whole events by the field ``key``, in the test kit."""
    if "keep" not in options:
        options["keep"] = "events"
    return FoldTester(Fold(**{"name": "f", "source": "s", "group_key": "key", "quiet_period": quiet_period} | options))


def send(kit: FoldTester, *numbers: int, key: str = "a", every: str = "1s") -> None:
    """Produce events with these numbers, some time apart."""
    for number in numbers:
        kit.send({"key": key, "n": number})
        kit.advance(every)


def numbers(kit: FoldTester) -> list[list[int]]:
    """The numbers of the events of each record."""
    return [[event["n"] for event in record.value["events"]] for record in kit.records]


def reasons(kit: FoldTester) -> list[str]:
    """The reason of each record."""
    return [record.value["fold"]["reason"] for record in kit.records]


def seconds(kit: FoldTester) -> list[int]:
    """When each record was emitted, in seconds after the first event of the kit."""
    return [(record.emitted_ms - kit._start_ms) // 1_000 for record in kit.records]
