"""Emission of due groups: seals them into the outbox, sends their records, and removes acknowledged records.

A record stays in the outbox until the broker has acknowledged it. After a crash between acknowledgement and removal, the next owner
finds the record there and sends it again under the same id: a duplicate, rather than a lost record. If the broker rejects a record
as too large, the record becomes a dead letter, so that it does not block its shard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING

from streams_app.codec import canonical_bytes
from streams_app.delivery.clocks import ReaderView, TrustedClock
from streams_app.delivery.dead_letters import DeadLetterSender
from streams_app.delivery.producer import TOO_LARGE, OutgoingRecord, Producer
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.delivery.scripts import FencedError
from streams_app.folding.agents.record_tracing import RecordTracing
from streams_app.folding.agents.window_statistics import WindowStatistics
from streams_app.folding.core.record import Renderer, SealedGroup
from streams_app.folding.shard.range_progress import MAX_GROUPS
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.replies import SealedGroups
from streams_app.health.metrics import Metrics, observe_all
from streams_app.kafka.rendered_records import FOLD_ID, RenderedRecords
from streams_app.native import NATIVE_ERROR, ColumnRecords, NativeCore
from streams_app.reasons import RECORD_TOO_LARGE
from streams_app.redis_access.client import REDIS_ERRORS

if TYPE_CHECKING:
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)

_DUE_MS, _REASON, _EVENTS = attrgetter("due_ms"), attrgetter("reason"), attrgetter("events")

FETCH_DELAY_MS = 100
"""Wait after a group becomes due, in ms: by then, two empty fetches have shown that everything that arrived before is folded."""

SEND_LIMIT = MAX_GROUPS
"""Maximum number of sealed groups whose records are sent at once; acknowledged ones leave the outbox before the next are sent.

A script seals as many, if each group that it folds ends with a session: so its block of the outbox is sent as a whole.
"""


@dataclass(slots=True)
class EmissionPass:
    """What one pass of the emission has done; a pass is one call of :meth:`Emitter.emit_due_once`.

    Attributes:
        records: Number of sealed groups whose records the broker has acknowledged, and which were removed from the outbox.
        more: Whether more groups are due, or the outbox is not empty, so that the next pass should begin at once.
        failed: The first error of the producer; None if there was none. Records that were not acknowledged are sent again.
    """

    records: int = 0
    sealed: int = 0
    more: bool = False
    failed: BaseException | None = None


@dataclass(slots=True)
class Emitter:
    """Seals the due groups of one shard, and sends their records to the output topic."""

    shard: Shard
    producer: Producer
    dead_letter_sender: DeadLetterSender
    clock: TrustedClock
    metrics: Metrics
    view: Callable[[], ReaderView] = lambda: ReaderView(None, None)
    """Returns the state of the reader after the last fetch; empty before the claim."""
    ticked: asyncio.Event = field(default_factory=asyncio.Event)
    """Wakes the emission task; see :meth:`wait_for_next_pass`."""
    statistics: WindowStatistics | None = None
    """Window statistics of the fold; None for a retired fold."""
    tracing: RecordTracing | None = None
    """Traces the records; None if tracing is off."""
    core: NativeCore | None = None
    """Renders and packs the records if it is not None, and tracing is off."""
    is_redis_full: bool = False
    """Whether Redis is full, so that no event can be folded until groups are emitted. Groups are then due by the wall clock, even
    though unread events wait: the partition clock would not advance.
    """
    is_failing: bool = False
    """Whether the last send failed."""
    acknowledged: int = 0
    """Number of records that the broker has acknowledged since the claim."""
    renderer: Renderer | None = None
    was_early: bool = False
    """Whether the last pass was made before its tick, because a group was due."""

    async def wait_for_next_pass(self, last: EmissionPass) -> None:
        """Wait until :meth:`emit_due_once` should be called again: at the next tick, or when the first open group becomes due.

        A tick is the periodic call of :meth:`.FoldProcessor.tick`, which sets :attr:`ticked`. The wait lasts until the tick if the
        last pass sealed a group, if the previous wait ended without a tick, or if the first group is already due. So there is one
        pass per tick under load, and a group that becomes due after a silence is emitted without waiting for the tick. After a tick
        during the last pass, there is no wait.
        """
        seconds = None if last.sealed or self.was_early else self._seconds_to_due()
        self.was_early = False
        try:
            async with asyncio.timeout(seconds):
                await self.ticked.wait()
        except TimeoutError:
            self.was_early = True
        self.ticked.clear()  # before the next pass, which may seal before what a tick meanwhile reports

    def _seconds_to_due(self) -> float | None:
        shard = self.shard
        due_ms = shard.last_seal.next_due_ms(shard.bounds.quiet_ms, shard.bounds.hold_ms) if shard.last_seal else None
        wait_ms = -1 if due_ms is None else due_ms + FETCH_DELAY_MS - self.clock.now_ms()
        return wait_ms / 1000 if wait_ms >= 0 else None

    async def emit_due_once(self) -> EmissionPass:
        """Send the records in the outbox and, at the same time, seal due groups; then send the records of the sealed groups.

        If more groups are due, or the producer has failed, the records of the newly sealed groups are left to the next pass.

        If the last send failed, or the definition of the fold has changed, the outbox is sent first. If that fails, nothing is
        sealed. After a change, all groups of the former definition are emitted, and the new definition is stored.

        Raises:
            ConnectionError: The definition has changed, and the producer failed to send the groups of the former one.
            redis.exceptions.RedisError: If :attr:`.Shard.is_claimed` is False now, the shard must be claimed again. Otherwise call
                again.
        """
        done = EmissionPass()
        if self.is_failing or self.shard.definition.has_changed:
            # Groups are sealed only after the broker has answered: a group that cannot be sent may as well fold further events.
            done = await self._send_pending()
            self.is_failing = done.failed is not None
            if self.is_failing:
                return done
        if self.shard.definition.has_changed:
            await self._adopt_definition()
        outcomes = await asyncio.gather(self._send_pending(), self._seal_due(done), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is not None:
                done.records += outcome.records
                done.failed = outcome.failed
        if done.failed is None and not done.more and self.shard.outbox:
            sent = await self._send_pending()
            done.records += sent.records
            done.failed = sent.failed
        done.more = done.more or bool(self.shard.outbox)
        self.is_failing = done.failed is not None
        return done

    async def _seal_due(self, done: EmissionPass) -> None:
        """Seal due groups until some :data:`SEND_LIMIT` are sealed; store in ``done`` their number, and whether more are due."""
        now_ms = self.clock.now_ms()
        done.more = True
        while done.more and done.sealed < SEND_LIMIT:
            sealed = await self.shard.seal(now_ms, folded_until_ms=self._folded_until_ms(now_ms), is_redis_full=self.is_redis_full)
            if sealed is None:
                return
            self._audit(sealed)
            done.sealed += len(sealed.sealed)
            done.more = sealed.more
            if not sealed.sealed:
                return

    async def seal_ahead(self) -> bool:
        """Seal due groups before a chunk of a backlog is folded, so that the folding script need not close them.

        Return whether any was sealed: none if the last send failed, or the definition of the fold has changed.

        Raises:
            FencedError: The shard must be claimed again, for example because the reply of Redis was lost.
        """
        if self.is_failing or self.shard.definition.has_changed:
            return False
        done = EmissionPass()
        try:
            await self._seal_due(done)
        except REDIS_ERRORS as error:
            raise FencedError("seal", "lost-reply") from error
        return done.sealed > 0

    def _folded_until_ms(self, now_ms: int) -> int | None:
        """Return the time up to which all records that had arrived are folded, in ms; the partition clock advances to it.

        It is the time of the newest fetch reply after which every event of the partition was folded. That remains true when more
        events arrive. The wall clock is not used, because events may have arrived that are not read yet, for example after the
        process was suspended; the time without those events would count as silence.

        While Redis is full and unread events remain, the result is ``now_ms`` nevertheless. Folding is paused until emission makes
        room, so fetch replies would give no later time, and no group might become due.

        The result is None if the clock is not trusted, or no fetch reply has given such a time since the claim.
        """
        if not self.clock.is_trusted():
            self.shard.clock.forget_folded_until()
            return None
        if not self.shard.observe_fetch(self.view(), now_ms) and self.is_redis_full:
            return now_ms
        folded_until_ms = self.shard.clock.folded_until_ms
        return None if folded_until_ms is None else min(folded_until_ms, now_ms)

    def _audit(self, done: SealedGroups) -> None:
        flushed = list(map(_REASON, done.sealed)).count("flush")
        if flushed:
            logger.info(
                "groups flushed on request fold=%s source=%s count=%d",
                self.shard.fold.name, self.shard.tp, flushed,
            )  # fmt: skip
        self._audit_dropped(done)

    def _audit_dropped(self, done: SealedGroups) -> None:
        name = self.shard.fold.name
        for group in done.dropped:
            logger.warning(
                "group dropped on request fold=%s source=%s group=%r first_offset=%d last_offset=%d events=%d by=%s reason=%r",
                name, self.shard.tp, canonical_bytes(group.member).decode("utf-8", "backslashreplace"), group.first_offset,
                group.last_offset, group.events, group.request.by, group.request.reason,
            )  # fmt: skip
        if done.dropped:
            self.metrics.groups_dropped.labels(fold=name).inc(len(done.dropped))

    async def drain(self) -> None:
        """Seal and send every open group, due or not; return when no group is open and the outbox is empty.

        Raises:
            ConnectionError: The producer failed; records that were not acknowledged are still in the outbox.
        """
        while True:
            sealed = await self.shard.seal(self.clock.now_ms(), folded_until_ms=None, everything=True)
            if sealed is not None:
                self._audit_dropped(sealed)
            sent = await self._send_pending()
            if sent.failed is not None:
                raise ConnectionError(f"cannot produce: {sent.failed!r}") from sent.failed
            if sealed is not None and not sealed.more and not sealed.sealed and not self.shard.outbox:
                return

    async def _adopt_definition(self) -> None:
        """Emit the groups of the former definition, so that no record mixes two definitions, then store the new one."""
        shard = self.shard
        logger.warning(
            "definition of the fold changed, open groups are emitted under the former one fold=%s source=%s former=%s",
            shard.fold.name, shard.tp, shard.definition.stored.to_text(),
        )  # fmt: skip
        await self.drain()
        await shard.adopt_definition()

    async def _send_pending(self) -> EmissionPass:
        done = EmissionPass()
        shard = self.shard
        left = len(shard.outbox)
        while left > 0 and shard.outbox:
            shard.check_owned()
            groups = shard.outbox.first(min(SEND_LIMIT, left))
            left -= len(groups)
            acknowledged, failed = await self._produce(groups)
            if acknowledged:
                await shard.finish(acknowledged)
                self._count(acknowledged)
                if self.tracing is not None:
                    self.tracing.finished(acknowledged)
                done.records += len(acknowledged)
                self.acknowledged += len(acknowledged)
            if failed is not None:
                done.failed = failed
                return done
        return done

    async def _produce(self, groups: list[SealedGroup]) -> tuple[list[SealedGroup], BaseException | None]:
        """Produce the records of sealed groups; return the groups of which all records are acknowledged, and the first error.

        A record that is too large counts as acknowledged once it is dead-lettered.
        """
        shard = self.shard
        if self.renderer is None or (self.renderer.shape, self.renderer.lost) != (shard.definition.stored, shard.lost):
            self.renderer = Renderer(shard.definition.stored, *shard.tp, shard.lost)
        columns = self._columns(self.renderer, groups)
        spans: list[Span] = []
        records: Sequence[OutgoingRecord]
        if columns is None:
            records, owner = self._records(self.renderer, groups)
            spans = [] if self.tracing is None else await self.tracing.begin(groups, records, owner)
        else:
            records, owner = RenderedRecords(shard.fold.output, columns), columns.owners()
        started = self.clock.monotonic_ms()
        outcomes = await self.producer.send(records)
        self.metrics.produce_seconds.labels(fold=shard.fold.name).observe((self.clock.monotonic_ms() - started) / 1000)
        if self.tracing is not None:
            self.tracing.end(spans, outcomes)
        if not any(outcomes):
            return list(groups), None
        failed: BaseException | None = None
        unsent: set[int] = set()
        for record, position, outcome in zip(records, owner, outcomes, strict=True):
            fault = outcome
            if isinstance(outcome, TOO_LARGE):
                fault = await self._dead_letter_too_large(record)
            if fault is not None:
                failed = failed or fault
                unsent.add(position)
        return [group for position, group in enumerate(groups) if position not in unsent], failed

    def _columns(self, renderer: Renderer, groups: list[SealedGroup]) -> ColumnRecords | None:
        """Render sealed groups with the native core; return None if Python must render them."""
        if self.core is None or self.tracing is not None:
            return None
        try:
            return renderer.columns(self.core, groups)
        except NATIVE_ERROR:
            self.core = None
            logger.exception("native core failed, records are rendered by Python from now on fold=%s", self.shard.fold.name)
            return None

    def _records(self, renderer: Renderer, groups: list[SealedGroup]) -> tuple[list[OutgoingRecord], list[int]]:
        """Render sealed groups; return the records, and for each of them the position of its group."""
        new, output = tuple.__new__, self.shard.fold.output
        records: list[OutgoingRecord] = []
        owner: list[int] = []
        for position, name, key, value in renderer.records(groups):
            records.append(new(OutgoingRecord, (output, key, value, [(FOLD_ID, name)], None, None)))
            owner.append(position)
        return records, owner

    async def _dead_letter_too_large(self, record: OutgoingRecord) -> BaseException | None:
        """Send a dead letter, with key and id only, for a record that would otherwise block its shard forever; return the error."""
        fold_id = dict(record.headers)[FOLD_ID]
        first_offset = int(fold_id.decode().rsplit(":", 1)[1].split("-", 1)[0])
        kept = SimpleNamespace(offset=first_offset, key=record.key, value=None)
        detail = f"{len(record.value or b'')} bytes"
        rejected = RejectedEvent(kept, RECORD_TOO_LARGE, detail, headers=((FOLD_ID, fold_id),))
        failed = await self.dead_letter_sender.send_once([rejected])
        if failed is None:
            logger.error("folded record too large for the broker, dead-lettered fold=%s id=%r", self.shard.fold.name, fold_id)
        return failed

    def _count(self, groups: Sequence[SealedGroup]) -> None:
        metrics, name = self.metrics, self.shard.fold.name
        now_ms = self.clock.now_ms()
        # Without a call in Python for each record, which would cost as much as rendering it natively.
        delays_ms = list(map(now_ms.__sub__, map(_DUE_MS, groups)))
        if min(delays_ms) < 0:
            delays_ms = [max(0, delay_ms) for delay_ms in delays_ms]
        observe_all(metrics.emit_delay_seconds.labels(fold=name), delays_ms, per_unit=1000)
        reasons = list(map(_REASON, groups))
        for reason in set(reasons):
            events = list(compress(map(_EVENTS, groups), map(reason.__eq__, reasons)))
            metrics.emitted(name, reason, len(events), sum(events), self.clock.monotonic_ms())
        if self.statistics is not None:
            self.statistics.emitted(self.shard.tp.partition, groups, now_ms)
