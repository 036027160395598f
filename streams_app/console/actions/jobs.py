"""Runs plans and actions as tasks of the console, whose progress any browser can see.

They are kept in memory only. What an action has done is in Redis, Kafka or the read store, and in its audit line.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from streams_app.clock import Clock
from streams_app.console.actions.model import (
    ActionInput,
    ActionKind,
    ActionPlan,
    ActionProgress,
    ActionResult,
    ActionTable,
    PreparedAction,
)
from streams_app.errors import ConfigurationError, StreamsAppError, TryAgainError

logger = logging.getLogger(__name__)

MOST_RUNNING: Final = 8
MOST_KEPT: Final = 200
"""Maximum number of jobs that are kept; of those that have ended, the oldest is forgotten first."""

STOP_SECONDS: Final = 3.0
"""Time for running jobs to end by themselves when the console ends."""

JobState = Literal["running", "planned", "done", "failed", "changed", "stopped"]


class ActionJob(msgspec.Struct, frozen=True):
    """A plan or an action that runs or has ended.

    Attributes:
        phase: ``plan``: it only finds out what the action would do; ``run``: it does it.
        state: ``changed``: the plan that was confirmed does not hold any more, so nothing was done; ``plan`` is the new one.
        progress: How far it is, as text.
        total: None: the amount of work is not known.
        plan: What the action would do; of a run, only if it has changed.
        lines: What the command prints at its end.
        error: Why it has failed; empty if it has not.
        by: Who has begun it.
    """

    id: str
    action: str
    object: str
    kind: str
    phase: Literal["plan", "run"]
    state: JobState
    progress: str
    done: int
    total: int | None
    plan: ActionPlan | None
    lines: list[str]
    table: ActionTable | None
    error: str
    by: str
    begun_ms: int
    ended_ms: int | None


@dataclass(slots=True)
class RunningJob:
    """A job with what it works on."""

    id: str
    kind: ActionKind
    action: PreparedAction
    by: str
    begun_ms: int
    is_run: bool
    seen: str = ""
    given: ActionInput = field(default_factory=lambda: ActionInput({}))
    state: JobState = "running"
    plan: ActionPlan | None = None
    result: ActionResult | None = None
    error: str = ""
    ended_ms: int | None = None
    is_stopped: bool = False
    progress: ActionProgress = field(default_factory=ActionProgress)
    task: asyncio.Task[None] | None = None

    @property
    def can_stop(self) -> bool:
        return self.state == "running" and self.kind.can_stop and not self.is_stopped

    def view(self) -> ActionJob:
        """Return what is shown."""
        target, result = self.action.target, self.result
        return ActionJob(
            self.id, self.kind.name, target.name, target.kind, "run" if self.is_run else "plan", self.state, self.progress.text,
            self.progress.done, self.progress.total, self.plan, [] if result is None else result.lines,
            None if result is None else result.table, self.error, self.by, self.begun_ms, self.ended_ms,
        )  # fmt: skip


class InProgressError(Exception):
    """The same action is in progress on the same object."""

    def __init__(self, job: RunningJob) -> None:
        super().__init__(f"the same is in progress, begun by {job.by}")
        self.job = job


class Jobs:
    """The plans and actions of this console.

    Attributes:
        kept: Those that are known, by id.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.kept: dict[str, RunningJob] = {}
        self._confirmed: dict[tuple[str, str], str] = {}

    def begin_plan(self, kind: ActionKind, action: PreparedAction, by: str) -> RunningJob:
        """Begin to find out what an action would do; if the same question is asked already, return its job.

        Raises:
            TryAgainError: Too many jobs run.
        """
        for job in self.kept.values():
            is_same = job.kind.name == kind.name and job.action.target.values == action.target.values
            if is_same and job.state == "running" and not job.is_run and not job.is_stopped:
                return job
        job = self._new(kind, action, by, is_run=False)
        self._begin(job, self._planned)
        return job

    def begin_run(
        self, kind: ActionKind, action: PreparedAction, seen: str, given: ActionInput, by: str, once: str
    ) -> RunningJob:  # fmt: skip
        """Begin an action; if this confirmation has begun one before, return that one.

        Args:
            seen: Fingerprint of the plan that was confirmed.
            once: Identifies the form that was sent.

        Raises:
            InProgressError: The same is in progress, by another confirmation.
            TryAgainError: Too many jobs run.
        """
        form = (once, action.target.lock)
        before = self.kept.get(self._confirmed.get(form, "")) if once else None
        if before is not None:
            return before
        for other in self.kept.values():
            if other.is_run and other.state == "running" and other.action.target.lock == action.target.lock:
                raise InProgressError(other)
        job = self._new(kind, action, by, is_run=True)
        job.seen, job.given = seen, given
        if once:
            self._confirmed[form] = job.id
        self._begin(job, self._done)
        return job

    async def wait(self, job: RunningJob, seconds: float) -> None:
        """Wait until a job has ended, but not longer than some seconds."""
        if job.task is not None:
            await asyncio.wait([job.task], timeout=seconds)

    def stop(self, job: RunningJob) -> None:
        """End a job, after the step in progress if it has steps, as Ctrl-C ends the command."""
        if not job.can_stop:
            return
        job.is_stopped = True
        if not job.action.stop() and job.task is not None:
            job.task.cancel()

    async def close(self) -> None:
        """End all jobs; what they leave behind is what an interrupted command leaves."""
        tasks = [job.task for job in self.kept.values() if job.task is not None and not job.task.done()]
        for job in self.kept.values():
            self.stop(job)
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _new(self, kind: ActionKind, action: PreparedAction, by: str, *, is_run: bool) -> RunningJob:
        running = [job for job in self.kept.values() if job.state == "running"]
        if len(running) >= MOST_RUNNING:
            raise TryAgainError(f"{len(running)} plans and actions run already: wait until one has ended")
        ended = [key for key, job in self.kept.items() if job.state != "running"]
        for key in ended[: max(0, len(self.kept) - MOST_KEPT + 1)]:
            del self.kept[key]
        self._confirmed = {form: key for form, key in self._confirmed.items() if key in self.kept}
        job = RunningJob(secrets.token_hex(8), kind, action, by, self._clock.now_ms(), is_run)
        self.kept[job.id] = job
        return job

    def _begin(self, job: RunningJob, work: Callable[[RunningJob], Awaitable[JobState]]) -> None:
        def ended(_: asyncio.Task[None]) -> None:
            if job.state == "running":  # cancelled, perhaps before its first step
                job.state = "stopped"
            job.ended_ms = self._clock.now_ms()

        job.task = asyncio.create_task(self._run(job, work), name=f"{'action' if job.is_run else 'plan'} {job.kind.name}")
        job.task.add_done_callback(ended)

    @staticmethod
    async def _run(job: RunningJob, work: Callable[[RunningJob], Awaitable[JobState]]) -> None:
        try:
            job.state = await work(job)
        except StreamsAppError as error:
            job.state, job.error = "failed", job.action.target.safe(str(error))
        except Exception as error:  # any error of an action is shown on its page
            logger.exception("an action failed with an unexpected error action=%s", job.kind.name)
            job.state, job.error = "failed", f"an unexpected error, see the log of the console: {type(error).__name__}"

    @staticmethod
    async def _planned(job: RunningJob) -> JobState:
        job.plan = await job.action.plan(job.progress)
        return "stopped" if job.is_stopped else "planned"

    @staticmethod
    async def _done(job: RunningJob) -> JobState:
        """Run an action if its plan still holds."""
        try:
            now = await job.action.plan(job.progress)
        except ConfigurationError as error:
            job.error = job.action.target.safe(str(error))
            return "changed"
        if job.is_stopped:
            return "stopped"
        if now.obstacle or not job.action.holds(job.seen, now):
            job.plan = now
            return "changed"
        job.result = await job.action.run(job.seen, now, job.given, job.by, job.progress)
        job.error = job.action.target.safe(job.result.error)
        if job.error:
            return "failed"
        return "stopped" if job.is_stopped else "done"
