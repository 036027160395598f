"""Plans and actions as jobs: one at a time for an object, told if the plan has changed, stopped, and failed."""

from __future__ import annotations

import asyncio

import pytest

from streams_app.console.actions.jobs import MOST_KEPT, MOST_RUNNING, InProgressError, Jobs
from streams_app.console.actions.model import (
    ActionInput,
    ActionKind,
    ActionPlan,
    ActionProgress,
    ActionResult,
    ActionTarget,
)
from streams_app.errors import ConfigurationError, StreamsAppError, TryAgainError
from tests.helpers.manual_clock import ManualClock

GIVEN = ActionInput({})


class Renaming:
    """An action whose plan and end a test chooses."""

    must_type = False

    def __init__(self, name: str = "a", state: str = "1", error: Exception | None = None) -> None:
        self.target = ActionTarget(name, "thing", "/", f"rename/{name}", {"name": [name]}, {"secret": "#1"})
        self.state = state
        self.error = error
        self.may_end = asyncio.Event()
        self.runs = 0

    async def plan(self, _: ActionProgress) -> ActionPlan:
        if isinstance(self.error, ConfigurationError):
            raise self.error
        return ActionPlan([f"would rename {self.state}"], self.state)

    def holds(self, fingerprint: str, now: ActionPlan) -> bool:
        return fingerprint == now.fingerprint

    async def run(self, _: str, __: ActionPlan, ___: ActionInput, by: str, ____: ActionProgress) -> ActionResult:
        self.runs += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return ActionResult([f"renamed by {by}"])

    def stop(self) -> bool:
        return False


RENAME = ActionKind("rename", "Rename", "Rename it", "Renames.", "rename", (), lambda *_: Renaming(), can_stop=True)


async def ended(jobs: Jobs, action: Renaming, seen: str = "1") -> tuple[str, str, list[str]]:
    action.may_end.set()
    job = jobs.begin_run(RENAME, action, seen, GIVEN, "anna", "")
    await jobs.wait(job, 10)
    view = job.view()
    return view.state, view.error, view.lines


async def test_action_runs_if_its_plan_still_holds() -> None:
    assert ("done", "", ["renamed by anna"]) == await ended(Jobs(ManualClock()), Renaming())


async def test_action_whose_plan_has_changed_does_nothing_and_has_the_new_plan() -> None:
    action, jobs = Renaming(state="2"), Jobs(ManualClock())
    state, _, _ = await ended(jobs, action)
    (job,) = jobs.kept.values()

    assert ("changed", 0, ActionPlan(["would rename 2"], "2")) == (state, action.runs, job.plan)


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (ConfigurationError(["secret is gone"]), "changed", "#1 is gone"),
        (TryAgainError("secret does not answer"), "failed", "#1 does not answer"),
        (ValueError("secret"), "failed", "an unexpected error, see the log of the console: ValueError"),
    ],
)
async def test_failed_action_says_why_without_what_is_hidden(error: Exception, state: str, text: str) -> None:
    assert (state, text, []) == await ended(Jobs(ManualClock()), Renaming(error=error))


async def test_one_action_runs_at_a_time_for_an_object_and_one_for_a_form() -> None:
    jobs, first, other = Jobs(ManualClock()), Renaming(), Renaming("b")
    job = jobs.begin_run(RENAME, first, "1", GIVEN, "anna", "form")
    same = jobs.begin_run(RENAME, Renaming(), "1", GIVEN, "bert", "form")
    with pytest.raises(InProgressError) as error:
        jobs.begin_run(RENAME, Renaming(), "1", GIVEN, "bert", "another form")
    of_other = jobs.begin_run(RENAME, other, "1", GIVEN, "bert", "form")
    await jobs.close()

    assert (job, job) == (same, error.value.job)
    assert of_other is not job
    assert ["stopped", "stopped"] == [one.state for one in jobs.kept.values()]


async def test_stopped_action_ends_and_its_object_is_free() -> None:
    jobs, action = Jobs(ManualClock()), Renaming()
    job = jobs.begin_run(RENAME, action, "1", GIVEN, "anna", "")
    jobs.stop(job)
    await jobs.wait(job, 10)

    assert ("stopped", False) == (job.state, job.can_stop)
    assert "done" == (await ended(jobs, Renaming()))[0]


async def test_jobs_are_limited() -> None:
    jobs = Jobs(ManualClock())
    running = [jobs.begin_run(RENAME, Renaming(str(number)), "1", GIVEN, "anna", "") for number in range(MOST_RUNNING)]
    with pytest.raises(StreamsAppError, match="run already"):
        jobs.begin_plan(RENAME, Renaming("x"), "anna")
    jobs.stop(running[0])
    await jobs.wait(running[0], 10)
    for number in range(MOST_KEPT + 10):
        job = jobs.begin_plan(RENAME, Renaming(f"p{number}"), "anna")
        await jobs.wait(job, 10)
    await jobs.close()

    assert MOST_KEPT == len(jobs.kept)
    assert all(job.id in jobs.kept for job in running[1:])
