"""Flush and drop of an open group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streams_app.console.actions.model import (
    CONFIRMATION,
    ActionContext,
    ActionField,
    ActionInput,
    ActionKind,
    ActionPlan,
    ActionProgress,
    ActionResult,
    ActionTarget,
    digest,
)
from streams_app.console.pages.fold import group_path
from streams_app.console.pages.paths import fold_path
from streams_app.console.reading.asking import PageError
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.formatting import counted, escaped, shown
from streams_app.operations.audit import audit
from streams_app.operations.drop import drop, open_named, open_text, row_of
from streams_app.operations.flush import flush, open_counts
from streams_app.operations.group_facts import FoundGroup

WAIT_SECONDS: Final = 30.0
"""Time for a worker to carry out a request, on top of ``worker.tick``; the default of the commands."""

_FOLD: Final = ActionField("fold", "Fold", "name of the fold", is_required=True)
_KEY: Final = ActionField("key", "Group", "group key, as `streams-app groups list` shows it", is_required=True)


class _OfGroup:
    """What flush and drop of a group have in common."""

    def __init__(self, context: ActionContext, given: ActionInput, action: str) -> None:
        self.context = context
        self.fold = fold_named(context, given)
        self.key = given.text("key")
        if not self.key:
            raise PageError(400, "Which group? Write its key as the list of open groups shows it")
        hidden = context.hidden
        is_plain = self.key.isprintable() and "  " not in f" {self.key} "
        name = hidden.key(self.key) if hidden.is_on else self.key if is_plain else shown(self.key)
        self.target = ActionTarget(
            name, f"group of fold {self.fold.name}", group_path(self.fold.name, self.key),
            f"{action}/{self.fold.name}/{self.key}", {"fold": [self.fold.name], "key": [self.key]},
            {escaped(self.key): name} if hidden.is_on else {},
        )  # fmt: skip

    @property
    def wait_seconds(self) -> float:
        return WAIT_SECONDS + self.context.settings.worker.tick_ms / 1_000

    def holds(self, fingerprint: str, now: ActionPlan) -> bool:
        return fingerprint == now.fingerprint

    def stop(self) -> bool:
        return False

    async def planned(self, verb: str, hints: list[str]) -> ActionPlan:
        found = await open_named(self.context.settings, self.fold, self.key)
        is_hidden = self.context.hidden.is_on
        name = self.target.name if is_hidden else ""
        lines = [f"would {verb} {open_text(each, self.fold, name, has_names=not is_hidden)}" for each in found]
        return ActionPlan(lines, fingerprint_of(found), hints=hints)


def fold_named(context: ActionContext, given: ActionInput) -> Fold:
    """Return the fold that the input names.

    Raises:
        PageError: There is none (404).
    """
    name = given.text("fold")
    found = {fold.name: fold for fold in context.settings.folds}.get(name)
    if found is None:
        raise PageError(404, f"There is no fold {name[:100]!r}")
    return found


def fingerprint_of(found: Sequence[FoundGroup]) -> str:
    """Return what identifies an open group: where it was opened. Events that it gets meanwhile do not make it another group."""
    return digest(*sorted((str(each.shard), each.member, row_of(each).first_offset) for each in found))


class Flush(_OfGroup):
    """Emits a group now."""

    must_type = False

    def __init__(self, context: ActionContext, given: ActionInput) -> None:
        super().__init__(context, given, "flush")

    async def plan(self, _: ActionProgress) -> ActionPlan:
        return await self.planned("emit", [])

    async def run(self, _: str, __: ActionPlan, ___: ActionInput, by: str, progress: ActionProgress) -> ActionResult:
        progress.show("requested; the worker that owns the partition emits it in its next pass", 0, None)
        done = await flush(self.context.settings, self.fold, self.key, self.wait_seconds)
        audit(self.context.clock, "flush", by, fold=self.fold.name, group=repr(self.key), groups=done.groups)
        return ActionResult([f"flushed {counted(done.groups, 'group')} in {counted(done.partitions, 'partition')}"])


class FlushAll:
    """Emits all open groups of a fold now."""

    must_type = True

    def __init__(self, context: ActionContext, given: ActionInput) -> None:
        self.context = context
        self.fold = fold_named(context, given)
        self.target = ActionTarget(
            self.fold.name, "fold", fold_path(self.fold.name), f"flush/{self.fold.name}", {"fold": [self.fold.name]}
        )

    async def plan(self, _: ActionProgress) -> ActionPlan:
        counts = await open_counts(self.context.settings, self.fold)
        if not counts:
            raise ConfigurationError([f"fold {self.fold.name} has no open groups"])
        lines = [f"would emit {counted(count, 'group')} of {partition}" for partition, count in counts.items()]
        hints = ["Groups that are opened until the worker does it are emitted, too."]
        return ActionPlan(lines, digest(self.fold.name), hints=hints)

    def holds(self, _: str, __: ActionPlan) -> bool:
        return True  # it is about whatever is open

    def stop(self) -> bool:
        return False

    async def run(self, _: str, __: ActionPlan, ___: ActionInput, by: str, progress: ActionProgress) -> ActionResult:
        progress.show("requested; the workers emit them in their next pass", 0, None)
        wait_seconds = WAIT_SECONDS + self.context.settings.worker.tick_ms / 1_000
        done = await flush(self.context.settings, self.fold, None, wait_seconds)
        audit(self.context.clock, "flush", by, fold=self.fold.name, group="--all", groups=done.groups)
        return ActionResult([f"flushed {counted(done.groups, 'group')} in {counted(done.partitions, 'partition')}"])


class Drop(_OfGroup):
    """Drops a group without a record."""

    must_type = True

    def __init__(self, context: ActionContext, given: ActionInput) -> None:
        super().__init__(context, given, "drop")

    async def plan(self, _: ActionProgress) -> ActionPlan:
        return await self.planned("drop", ["Events that arrive until the worker does it are dropped, too."])

    async def run(self, _: str, __: ActionPlan, given: ActionInput, by: str, progress: ActionProgress) -> ActionResult:
        why = given.text("reason").strip()
        progress.show("requested; the worker that owns the partition drops it in its next pass", 0, None)
        done = await drop(self.context.settings, self.fold, self.key, by, why, self.wait_seconds)
        lines = []
        if done.groups:
            lines.append(f"dropped {counted(done.groups, 'group')} with {counted(done.events, 'event')}, without a record")
            audit(self.context.clock, "drop", by, fold=self.fold.name, group=repr(self.key), groups=done.groups, reason=repr(why))
        closed = f"{self.target.name} was emitted before the worker of its partition took the request"
        return ActionResult(lines, closed if done.closed else "")


FLUSH: Final = ActionKind(
    "flush", "Flush a group", "Emit it now",
    "Emits the group now, with the reason `flush`. The worker that owns the partition does it in its next pass and logs it. If no "
    "worker runs, the request waits in Redis.",
    "streams-app groups flush", (_FOLD, _KEY), Flush,
)  # fmt: skip
FLUSH_ALL: Final = ActionKind(
    "flush-all", "Flush all groups", "Emit all now",
    "Emits each open group of the fold now, with the reason `flush`. The workers do it in their next pass and log it. If none "
    "runs, the request waits in Redis.",
    "streams-app groups flush --all", (_FOLD,), FlushAll,
)  # fmt: skip
DROP: Final = ActionKind(
    "drop", "Drop a group", "Drop it without a record",
    "Drops the open group without a record. Its events stay in the source topic, but no record will contain them. The next event "
    "of the group opens it again. The worker that owns the partition drops it in its next pass and logs it. If no worker runs, the "
    "request waits in Redis.",
    "streams-app groups drop",
    (_FOLD, _KEY, ActionField("reason", "Why", "why it is dropped, for the log of the worker", CONFIRMATION, is_required=True)),
    Drop,
)  # fmt: skip
