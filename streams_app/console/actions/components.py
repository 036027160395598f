"""Replay of dead letters, retries and reset of a subscriber, and repair of a read store."""

from __future__ import annotations

from typing import Any, Final

from streams_app.console.actions.model import (
    PLAN,
    ActionContext,
    ActionField,
    ActionInput,
    ActionKind,
    ActionPlan,
    ActionProgress,
    ActionResult,
    ActionTable,
    ActionTarget,
    digest,
)
from streams_app.console.pages.action_links import REPLAYABLE
from streams_app.console.pages.paths import store_path, subscriber_path
from streams_app.console.pages.topic import topic_path
from streams_app.console.reading.asking import PageError
from streams_app.errors import ConfigurationError, StreamsAppError
from streams_app.formatting import counted, parse_moment
from streams_app.operations.audit import audit
from streams_app.operations.dead_letter import DeadLetterSelection
from streams_app.operations.replay import DeadLetterReplay, ReplayProgress, summary
from streams_app.operations.replay_preparation import prepare_replay, progress_text, replay_facts
from streams_app.operations.reset_offsets import moment_of, plan_offsets, reset_offsets
from streams_app.operations.retry_now import retry_now, waiting_events
from streams_app.operations.store_replay import StoreReplay
from streams_app.operations.verify import Verification
from streams_app.operations.verify_result import behind_text, difference_texts, repair_facts
from streams_app.operations.verify_result import summary as verify_summary
from streams_app.reasons import REASONS, Reason
from streams_app.requirements.components import dead_letter_topics

SHOWN_DIFFERENCES: Final = 50


def dead_letters_of(context: ActionContext, kind: str, name: str) -> str:
    """Return the dead-letter topic of a component.

    Raises:
        PageError: It is not declared (404).
    """
    topic = dead_letter_topics(context.declarations.workload).get((kind, name))
    if topic is None:
        raise PageError(404, f"There is no {REPLAYABLE[kind]} {name[:100]!r}")
    return topic


class Replay:
    """Replays dead letters of a fold, read store or subscriber."""

    def __init__(self, context: ActionContext, given: ActionInput) -> None:
        self.context = context
        self.given_of = given.text("of")
        kind, _, name = self.given_of.partition(":")
        if kind not in REPLAYABLE or not name:
            raise PageError(404, "Whose dead letters? of is fold:NAME, store:NAME or subscriber:NAME")
        topic = dead_letters_of(context, kind, name)
        self.again, self.interrupted, self.limit = given.flag("again"), given.flag("interrupted"), given.number("limit")
        reasons, positions, keys = given.texts("reason"), given.lines("offset"), given.lines("key")
        since = given.text("since").strip()
        self.selection = DeadLetterSelection(
            context.settings.app_id, name, frozenset(_reason(text) for text in reasons),
            frozenset(position_of(text) for text in positions),
            frozenset(key.encode("utf-8", "surrogateescape") for key in keys), kind,
            since_ms=_since(since, context.clock.now_ms()) if since else 0, renamed=name,
        )  # fmt: skip
        if self.interrupted and kind != "subscriber":
            raise PageError(400, "Only events of subscribers are ever interrupted")
        values = {
            "of": [self.given_of], "reason": reasons, "offset": positions, "key": keys, "since": [since] if since else [],
            "limit": [str(self.limit)] if self.limit else [], "again": ["yes"] if self.again else [],
            "interrupted": ["yes"] if self.interrupted else [],
        }  # fmt: skip
        self.must_type = self.again or self.interrupted
        self.target = ActionTarget(
            name,
            REPLAYABLE[kind],
            topic_path(topic),
            f"replay/{kind}/{name}",
            {field: found for field, found in values.items() if found},
        )
        self._running: DeadLetterReplay | StoreReplay | None = None

    def _replay(self, progress: ActionProgress, *, limit: int | None, dry_run: bool) -> DeadLetterReplay | StoreReplay:
        replay = prepare_replay(
            self.context.settings, self.selection, self.context.clock, limit=limit, again=self.again, interrupted=self.interrupted,
            dry_run=dry_run,
        )  # fmt: skip
        passes = 1 if isinstance(replay, StoreReplay) else 2
        replay.on_batch = lambda done: progress.show(progress_text(done), done.searched + done.read, passes * done.offsets)
        self._running = replay
        return replay

    async def plan(self, progress: ActionProgress) -> ActionPlan:
        replay = self._replay(progress, limit=self.limit, dry_run=True)
        await replay.run()
        hints = ["They may be handled twice, because events that were handled, or may have been, are among them."]
        obstacle = "" if replay.done.replayed else "No event would pass now: there is nothing to replay."
        return ActionPlan(
            summary(replay.done, dry_run=True, failed=False), str(replay.done.replayed), obstacle, hints if self.must_type else []
        )

    def holds(self, fingerprint: str, now: ActionPlan) -> bool:
        """Return whether all events that somebody has seen are still there; later ones are not replayed, see :meth:`run`."""
        return fingerprint.isascii() and fingerprint.isdigit() and 0 < int(fingerprint) <= int(now.fingerprint)

    def stop(self) -> bool:
        if self._running is None:
            return False
        self._running.stop()
        return True

    async def run(self, seen: str, now: ActionPlan, _: ActionInput, by: str, progress: ActionProgress) -> ActionResult:
        # More dead letters may have been written since the plan: only as many as it said are replayed.
        limit = self.limit if int(seen) == int(now.fingerprint) else int(seen)
        replay = self._replay(progress, limit=limit, dry_run=False)
        error, is_failed = "", True
        try:
            await replay.run()
            is_failed = False
        except StreamsAppError as failure:
            error = str(failure)
        finally:
            self._audit(replay.done, by, is_failed=is_failed)
        return ActionResult(summary(replay.done, dry_run=False, failed=is_failed) if replay.done.is_begun else [], error)

    def _audit(self, done: ReplayProgress, by: str, *, is_failed: bool) -> None:
        if done.is_begun:
            is_complete = not (is_failed or done.is_stopped)
            facts = replay_facts(self.selection, done, interrupted=self.interrupted, again=self.again, is_complete=is_complete)
            audit(self.context.clock, "replay", by, **facts)


def position_of(text: str) -> tuple[int, int]:
    """Return partition and offset, which are written as ``3:1041``.

    Raises:
        PageError: They are not (400).
    """
    partition, _, offset = text.strip().partition(":")
    if not all(part.isascii() and part.isdigit() and len(part) <= most for part, most in ((partition, 9), (offset, 18))):
        raise PageError(400, f"{text[:80]!r} is not PARTITION:OFFSET, as in 3:1041")
    return int(partition), int(offset)


def _reason(text: str) -> Reason:
    found = next((reason for reason in REASONS if reason == text), None)
    if found is None:
        raise PageError(400, f"{text[:80]!r} is no reason of dead letters: {', '.join(REASONS)}")
    return found


def _since(text: str, now_ms: int) -> int:
    try:
        return parse_moment(text, now_ms)
    except ValueError as error:
        raise PageError(400, f"since: {error}") from error


class RetryNow:
    """Retries now what waits for a retry."""

    must_type = False

    def __init__(self, context: ActionContext, given: ActionInput) -> None:
        self.context = context
        self.one = _subscription(context, given)
        name = self.one.subscriber.name
        self.target = ActionTarget(name, "subscriber", subscriber_path(name), f"retry/{name}", {"subscriber": [name]})

    async def plan(self, _: ActionProgress) -> ActionPlan:
        found = await waiting_events(self.context.settings, self.one, self.context.clock)
        return ActionPlan(
            found.lines(self.context.clock.now_ms()), "retry", hints=["An attempt that fails counts, as at any other time."]
        )

    def holds(self, _: str, __: ActionPlan) -> bool:
        """Return True: what has begun or ended since the plan is not retried, and what waits since is meant, too."""
        return True

    def stop(self) -> bool:
        return False

    async def run(self, _: str, __: ActionPlan, ___: ActionInput, by: str, progress: ActionProgress) -> ActionResult:
        progress.show("waiting for the workers", 0, None)
        done = await retry_now(self.context.settings, self.one, self.context.clock)
        audit(self.context.clock, "retry", by, subscriber=self.target.name, events=done.events, workers=done.workers)
        return ActionResult([done.line()])


def _subscription(context: ActionContext, given: ActionInput) -> Any:
    """Return a declared subscriber with its topics and its consumer group.

    Raises:
        PageError: It is not declared (404).
    """
    name = given.text("subscriber")
    known = {one.subscriber.name: one for one in context.declarations.workload.subscriptions}
    if name not in known:
        raise PageError(404, f"There is no subscriber {name[:100]!r}")
    return known[name]


class Reset:
    """Moves a subscriber to another position."""

    must_type = True

    def __init__(self, context: ActionContext, given: ActionInput) -> None:
        self.context = context
        self.one = _subscription(context, given)
        name = self.one.subscriber.name
        self.fault = ""
        where = given.text("at").strip()
        try:
            # A duration becomes a time, so that the plan that is confirmed is the one that was shown.
            self.at = moment_of(where or "latest", context.clock.now_ms())
            values = {"subscriber": [name], **({"at": [str(self.at)]} if where else {})}
        except ValueError as error:
            self.fault, values = str(error), {"subscriber": [name], "at": [where]}
        self.target = ActionTarget(name, "subscriber", subscriber_path(name), f"reset/{name}", values)

    async def plan(self, _: ActionProgress) -> ActionPlan:
        if self.fault:
            raise ConfigurationError([self.fault])
        planned = await plan_offsets(self.context.settings, self.one, self.at)
        state = digest(sorted(planned.keys), sorted(planned.offsets.items()), sorted(planned.present.items()))
        return ActionPlan(
            planned.lines(self.target.name), state, planned.obstacle(self.one.group),
            ["All events from the new position on run, even those that have run before; events before it never run."],
        )  # fmt: skip

    def holds(self, fingerprint: str, now: ActionPlan) -> bool:
        return fingerprint == now.fingerprint

    def stop(self) -> bool:
        return False

    async def run(self, _: str, __: ActionPlan, ___: ActionInput, by: str, progress: ActionProgress) -> ActionResult:
        planned = await plan_offsets(self.context.settings, self.one, self.at)
        if obstacle := planned.obstacle(self.one.group):
            raise ConfigurationError([obstacle])
        progress.show("committing the new offsets", 0, None)
        await reset_offsets(self.context.settings, self.one, planned)
        audit(
            self.context.clock, "reset", by, subscriber=self.target.name, at=self.at, partitions=len(planned.offsets),
            keys=len(planned.keys),
        )  # fmt: skip
        return ActionResult(["done"])


class RepairOfStore:
    """Writes the correct values into a read store."""

    must_type = True

    def __init__(self, context: ActionContext, given: ActionInput) -> None:
        self.context = context
        self.store = context.settings.read_store(given.text("store") or None)
        name = self.store.name
        self.target = ActionTarget(name, "read store", store_path(name), f"repair/{name}", {"store": [name]})
        self._repair: Verification | None = None

    async def _verified(self, progress: ActionProgress, *, is_repair: bool) -> tuple[Verification, list[list[str]], str]:
        """Compare the store; also return the first differences, and why it has failed."""
        rows: list[list[str]] = []
        comparing = Verification(
            self.context.settings, self.store, self.context.clock, is_repair=is_repair, on_progress=progress.show,
            on_difference=lambda one: rows.append(difference_texts(one)) if len(rows) < SHOWN_DIFFERENCES else None,
        )  # fmt: skip
        self._repair = comparing if is_repair else None
        try:
            await comparing.run()
        except StreamsAppError as error:
            if not is_repair:
                raise
            return comparing, rows, str(error)
        return comparing, rows, behind_text(comparing.done, self.store.name) if comparing.done.behind else ""

    async def plan(self, progress: ActionProgress) -> ActionPlan:
        comparing, found, behind = await self._verified(progress, is_repair=False)
        done = comparing.done
        obstacle = "" if done.differences else "There is no difference: nothing to repair."
        hints = ["Repair compares all of it once more, and writes what is wrong then, except cells that are written meanwhile."]
        return ActionPlan(
            self._lines(comparing), str(done.differences), obstacle, [*hints, *filter(None, [behind])], self._table(found)
        )

    def holds(self, fingerprint: str, now: ActionPlan) -> bool:
        """Return whether no more differs than somebody has seen."""
        return fingerprint.isascii() and fingerprint.isdigit() and int(now.fingerprint) <= int(fingerprint)

    def stop(self) -> bool:
        return False

    async def run(self, _: str, __: ActionPlan, ___: ActionInput, by: str, progress: ActionProgress) -> ActionResult:
        try:
            comparing, found, error = await self._verified(progress, is_repair=True)
        finally:
            if self._repair is not None:
                audit(self.context.clock, "repair", by, **repair_facts(self._repair.done, self.target.name))
        done = comparing.done
        left = done.differences - done.repaired
        fault = f"{counted(left, 'difference')} left: see what the store says of them" if left and not error else error
        return ActionResult(self._lines(comparing), fault, self._table(found))

    def _lines(self, comparing: Verification) -> list[str]:
        lines = verify_summary(comparing.done, self.target.name)
        return [line for line in lines if not line.startswith("NULL")] if self.context.hidden.is_on else lines

    def _table(self, rows: list[list[str]]) -> ActionTable | None:
        if not rows:
            return None
        hidden = self.context.hidden
        if hidden.is_on:
            rows = [[hidden.key(row[0]), "", row[2], "", ""] for row in rows]
        title = f"The first {len(rows)} differences" if len(rows) == SHOWN_DIFFERENCES else "Differences"
        return ActionTable(title, ["Group", "Name", "What", "In the store", "In the source"], rows)


def _named(what: str, name: str, how: str) -> ActionField:
    return ActionField(name, what, how, is_required=True)


REPLAY: Final = ActionKind(
    "replay", "Replay dead letters", "Replay them",
    "Replays rejected events after the cause was fixed, only for the fold, read store or subscriber that rejected them. Events "
    "that its present definition would reject again are counted and not replayed. Each event is replayed once: receipts in the "
    "dead-letter topic record it.",
    "streams-app dead-letters replay",
    (
        _named("Whose", "of", "`fold:NAME`, `store:NAME` or `subscriber:NAME`"),
        ActionField("offset", "Events", "only those read at `PARTITION:OFFSET`, one a line; empty: all", PLAN, "lines"),
        ActionField("key", "Keys", "only those with one of these record keys, one a line", PLAN, "lines"),
        ActionField(
            "reason", "Reason", "only those with this reason", PLAN, "choice", {"": "any"} | {str(one): str(one) for one in REASONS}
        ),
        ActionField("since", "Since", "only dead letters since this time: a duration ago, as in `24h`, or an ISO time", PLAN),
        ActionField("limit", "At most", "maximum number of events; empty: all", PLAN, "number"),
        ActionField("again", "Also those that were replayed before", "they may be handled twice", PLAN, "check"),
        ActionField(
            "interrupted", "Also interrupted events of a subscriber",
            "the process died during the attempt: they may have been handled", PLAN, "check",
        ),
    ),
    Replay, is_slow=True, can_stop=True,
)  # fmt: skip
RETRY: Final = ActionKind(
    "retry", "Retry now", "Retry them now",
    "Retries now the events that wait for a retry, and probes now if the circuit breaker is open, for example after the cause of "
    "failures is mended. Workers keep running; order by key, rate and concurrency are kept.",
    "streams-app events retry", (_named("Subscriber", "subscriber", "name of the subscriber"),), RetryNow,
)  # fmt: skip
RESET: Final = ActionKind(
    "reset", "Reset a subscriber", "Reset it",
    "Moves a subscriber to another position: commits new offsets, and removes its attempts and event ids from Redis. Stop the "
    "workers that run it first. Replayed events that are not handled yet are skipped: replay them again.",
    "streams-app reset --subscriber",
    (
        _named("Subscriber", "subscriber", "name of the subscriber"),
        ActionField(
            "at", "New position", "`earliest`, `latest`, a duration ago, as in `24h`, an ISO time, or ms since 1970", PLAN,
            is_required=True,
        ),
    ),
    Reset,
)  # fmt: skip
REPAIR: Final = ActionKind(
    "repair", "Repair a read store", "Write the correct values",
    "Compares each cell of the read store with its source, and writes the correct value where they differ, except cells that are "
    "written meanwhile. Workers may run.",
    "streams-app read-store verify --repair", (_named("Read store", "store", "name of the read store"),), RepairOfStore,
    is_slow=True, can_stop=True,
)  # fmt: skip
