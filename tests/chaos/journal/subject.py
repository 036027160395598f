"""Journals under faults, and their own: kills at points of their keeper.

They are judged from outside: what readers received is compared byte for byte with the topic. No durations are asserted.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from streams_app.journal.reading.entries import Gap
from streams_app.journal.reading.reader import JournalReader
from streams_app.settings import Settings
from tests.chaos.faults import killed_at
from tests.chaos.faults_redis import flushall
from tests.chaos.journal.clients import Client
from tests.chaos.journal.final_state import FinalState
from tests.chaos.journal.judge import Judge
from tests.chaos.journal.load import DAYS, TOPIC, DatedLoad, ProducedPositions, read_topic
from tests.chaos.journal.removals import Removals
from tests.chaos.kill_points import JOURNAL_POINTS
from tests.chaos.run import Duration
from tests.chaos.stage import KilledAt
from tests.chaos.subject import Amount, Subject
from tests.chaos.traces import TRACE_SECONDS
from tests.helpers.waiting import wait_until

if TYPE_CHECKING:
    from tests.chaos.stage_run import StageRun

FOLLOW_SECONDS: Final = 120.0
END_SECONDS: Final = 20.0
CLAIMED: Final = "claimed journal="
CONNECTED: Final = 6
"""Readers that share the connections of one :class:`JournalReader`."""

UNKNOWN_SECONDS: Final = 60.0
"""Time over which the load is spread if the duration of a run depends on its steps."""

AT_POINTS: Final = {f"killed-{point}": point for point in JOURNAL_POINTS}

SETTINGS: Final = f"""\
[journals.days]
source = "{TOPIC}"
key = "@key"
keep = "{DAYS + 20}d"
max_bytes = 6_000_000
"""


class OutsideReader(JournalReader):
    """A reader outside of workers, with another connection name: a fault checks by this name whether workers have left a Redis."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._redis.connection_pool.connection_kwargs["client_name"] = "reader"


class Journal(Subject):
    """A journal of many days, with readers and followers."""

    name = "journal"
    full = Duration(3, 60.0)
    share = Duration(1, 20.0)
    alone = Amount(150.0, clients=30)
    beside = Amount(150.0, clients=15)
    settings = SETTINGS
    dated = (TOPIC,)
    own_faults = tuple(AT_POINTS)
    losing = frozenset({"killed-midnight"})
    noticed = frozenset(
        {
            "sigkill", "sigstop", "sigterm", "flushall", "redis-restart", "redis-tail-cut", "redis-roll-back", "script-flush",
            "client-kill", "redis-full", "redis-frozen", "redis-failover", "broker-frozen", "broker-restart",
        }
    )  # fmt: skip

    def __init__(self, run: StageRun, amount: Amount) -> None:
        """Create the subject without starting it; half of the clients are readers, the others followers."""
        super().__init__(run, amount)
        logging.getLogger("streams_app").setLevel(logging.CRITICAL)  # readers report servers that are down on purpose
        self._produced = ProducedPositions()
        self._load = DatedLoad(
            lambda: run.stage.bootstrap, self._produced, seed=run.seed, rate=amount.rate,
            seconds=run.duration.seconds or UNKNOWN_SECONDS, is_idempotent=run.options.kafka != "embedded",
        )  # fmt: skip
        self._readers: list[JournalReader] = []
        self._clients = [self._client(number, follows=bool(number % 2)) for number in range(2 * amount.clients)]
        self._removed: Removals | None = None
        self._judge: Judge | None = None
        self._final: FinalState | None = None
        self._settled_seconds = self._drain_seconds = 0.0

    def _client(self, number: int, *, follows: bool) -> Client:
        return Client(
            lambda: self._readers[number % CONNECTED], self._produced, random.Random(f"{self.run.seed}/{number}"), follows=follows
        )

    async def fill(self) -> None:
        await self._load.before()

    async def load(self, breaking: asyncio.Task[None]) -> None:
        """Produce until the faults have ended, while clients read; judge what they received, and the journal at the end."""
        settings = Settings.load(self.run.stage.config, {})
        self._readers = [OutsideReader(settings) for _ in range(CONNECTED)]
        try:
            await self._judged(breaking)
        finally:
            for reader in self._readers:
                await reader.aclose()

    async def _judged(self, breaking: asyncio.Task[None]) -> None:
        clients = [asyncio.create_task(client.run()) for client in self._clients]
        load = self._load
        try:
            await asyncio.gather(load.run(breaking.done), breaking)
            healed = time.monotonic()
            topic = await read_topic(self.run.stage.bootstrap)
            assert sum(map(len, topic.values())) >= load.sent, "the topic contains all acknowledged events"
            self._final = final = FinalState(self.run.stage, self._readers[0].journal, topic)
            await final.settle()
            self._settled_seconds = round(time.monotonic() - healed, 1)
            self._removed = removed = final.removed(may_be_full="redis-full" in self.run.faults)
            self._judge = judge = Judge(topic, removed.ends, final.floors if self.run.stage.kept_data else None)
            await self._follow_to_the_end(judge)
            self._drain_seconds = round(time.monotonic() - healed, 1)
        finally:
            stuck = await self._cancelled(clients)
        self.wrong += [f"a client does not end: {task.get_stack()}" for task in stuck]
        self.wrong += [f"a client ended: {task.exception()!r}" for task in clients if task.done() and not task.cancelled()]
        for client in self._clients:
            self.wrong += client.wrong
            for reading in client.readings:
                judge.judge(reading)
            if not client.readings:
                self.wrong.append("a client never read")
        # Each client reads more than once, and a busy key has hundreds of events.
        judge.require(3 * len(self._clients), 50 * len(self._clients))
        if {type(item) for client in self._clients for reading in client.readings for item in reading.items} == {Gap}:
            self.wrong.append("clients received only gaps")
        await final.judge(judge, self._readers[0])
        await final.verify()
        self.wrong += [*final.wrong, *judge.wrong]

    @staticmethod
    async def _cancelled(tasks: list[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Cancel tasks repeatedly, because the client of Redis may swallow it before Python 3.12; return those that continue."""
        left = set(tasks)
        for _ in range(int(END_SECONDS)):
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=1)
            if not left:
                break
        return left

    async def _follow_to_the_end(self, judge: Judge) -> None:
        """Wait until each follower has received the last event of its key, or a report that it was removed."""
        followers = [client for client in self._clients if client.follows]
        for client in followers:
            client.is_settled = True

        def behind() -> list[str]:
            found = []
            for client in followers:
                if not client.readings:
                    found.append("a follower never read")
                    continue
                reading = client.readings[-1]
                for partition in judge.topic:
                    at, last = reading.position(partition), judge.last(reading, partition)
                    if at < last:
                        found.append(f"a follower of {reading.key!r} reached {partition}-{at} of {last}")
            return found

        try:
            await wait_until(lambda: not behind(), FOLLOW_SECONDS, "all followers have received everything")
        except AssertionError:
            self.wrong += behind()[:5]

    async def cause(self, fault: str) -> None:
        point = AT_POINTS[fault]
        if point != "midnight":
            await killed_at(self.run.stage, self.chance, point, self.chance.randrange(1, 4))
            return
        # A partition that has caught up uses the wall clock: it passes midnights only if it is stored again. The first days of two
        # or more partitions begin without one.
        await killed_at(self.run.stage, self.chance, point, self.chance.randrange(5, 25), self._wipe)

    async def _wipe(self, worker: KilledAt) -> None:
        await wait_until(lambda: CLAIMED in worker.log(), TRACE_SECONDS, "the worker that will be killed has claimed the journal")
        await flushall(self.run.stage, self.chance)

    def lines(self) -> list[str]:
        sent, size = self._load.sent, self._load.bytes
        begins = sum((client.begins for client in self._clients), Counter[str]())
        lines = [
            f"journal: {sent:,} events, {size / 1e6:.1f} MB",
            f"  begins: {', '.join(f'{kind} x{times}' for kind, times in begins.most_common())}",
        ]
        if self._judge is not None and self._final is not None and self._removed is not None:
            removed = ", ".join(f"{times} for {cause}" for cause, times in self._removed.causes.most_common())
            lines += [
                f"  {self._judge.readings:,} readings of {len(self._judge.keys):,} keys, {self._judge.entries:,} entries compared, "
                f"{self._judge.gaps:,} gaps reported, {len(self._judge.wrong)} wrong",
                f"  {self._final.segments} segments of {len(self._final.days)} days from {sorted(self._final.floors.values())}, "
                f"removed: {removed or 'none'}; all stored and packed {self._settled_seconds} s "
                f"after the load, followed {self._drain_seconds} s",
            ]
        return lines
