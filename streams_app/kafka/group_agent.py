"""Runs one component of a worker, such as a read store or a live view, as a member of its own consumer group.

Because of its own group, a component delays no fold and no other component: neither while it is rebuilt from old records, nor
during a rebalance, nor if its Kafka client fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeAlias

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.delivery.processor import Processors
from streams_app.delivery.tasks import cancel_all
from streams_app.errors import text_of
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.kafka.group_member import GroupMember
from streams_app.settings import Settings

logger = logging.getLogger(__name__)

UPDATE_SECONDS: Final = 2.0

UnreadRanges: TypeAlias = Mapping[TP, tuple[int, int]]
"""Position of the consumer group and end of the log for each assigned partition."""


class GroupAgent:
    """Joins a consumer group, claims and releases its partitions, and updates the gauges of the component.

    A component consists of its processors, and of what it gives to this agent.
    """

    def __init__(
        self,
        what: str,
        member: GroupMember,
        processors: Processors,
        config: OwnershipConfig,
        update_gauges: Callable[[UnreadRanges | None], None],
        *,
        status: Status | None = None,
        outages: Collection[OutageReporter] = (),
        on_end: Callable[[], Awaitable[None]] | None = None,
        update_seconds: float = UPDATE_SECONDS,
    ) -> None:
        """Create the agent, without connecting.

        Args:
            what: Kind of the component in logs, such as ``live view``.
            update_gauges: Called every ``update_seconds``; None: the broker does not answer.
            status: Status of the worker, whose remarks have the present outages of the component and of its Kafka client; None: the
                component reports them itself.
            outages: Those of the component, without its Kafka client.
            on_end: Called after the member has left the group.
        """
        self.member = member
        self.ownership = Ownership(member, processors, config)
        self._what = what
        self._update_gauges = update_gauges
        self._status = status
        self._outages = outages
        self._on_end = on_end
        self._update_seconds = update_seconds

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set, then commit and leave the group. During outages, wait and retry."""
        updating = asyncio.create_task(self._update_forever(), name=f"{self.member.group} gauges")
        try:
            await self.member.run(self.ownership, stop)
        finally:
            await cancel_all([updating])
            if self._on_end is not None:
                await self._on_end()

    async def _update_forever(self) -> None:
        last_error = ""
        while True:
            unread_ranges = await self._unread_ranges()
            if self._status is not None:
                for outage in (*self._outages, self.member.outage):
                    self._status.remark(f"outage:{outage.what}", outage.remark)
            try:
                self._update_gauges(unread_ranges)
            except Exception as error:
                # Any error is logged and skipped, because gauges must not stop silently.
                if last_error != (last_error := text_of(error)):
                    logger.exception("gauges of a %s failed, trying again group=%s", self._what, self.member.group)
            await asyncio.sleep(self._update_seconds)

    async def _unread_ranges(self) -> UnreadRanges | None:
        try:
            return await self.member.unread_ranges(self.ownership.positions())
        except Exception as error:  # noqa: BLE001  # any error: the other gauges are updated, and the next update tries once more
            logger.debug("cannot read the lag of a %s group=%s error=%s", self._what, self.member.group, text_of(error))
            return None


def config_of(
    settings: Settings, group: str, clock: TrustedClock, metrics: Metrics, on_fatal: Callable[[BaseException], None]
) -> OwnershipConfig:
    """Return the configuration of the ownership of a component's partitions; ``group`` is the short name of its group."""
    full_name = f"{settings.app_id}.{group}"
    return OwnershipConfig(
        clock,
        Status(),  # not that of the worker, which is ready while a component waits, because the others continue
        on_fatal=on_fatal,
        on_resync=lambda name, cause: None,
        on_went_back=metrics.went_back,
        on_assigned=lambda tps: metrics.rebalanced(full_name, tps, clock.now_ms()),
        session_ms=settings.kafka.session_timeout_ms,
        tick_seconds=settings.worker.tick_ms / 1000,
    )


def lag_of(unread_ranges: UnreadRanges) -> int:
    """Return the number of records between the positions and the ends of the logs."""
    return sum(max(0, end - position) for position, end in unread_ranges.values())
