"""The toy processor in a simulation: two of them count the events of one source by key, and reject events without a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from streams_app.delivery.batch import TP
from streams_app.delivery.dead_letters import DeadLetterSender, RejectingComponent
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.processor import Processor, Processors
from streams_app.delivery.producer import OutgoingRecord
from streams_app.delivery.scripts import Script, with_included
from tests.simulation.kafka import Log, Sender
from tests.simulation.ledger import positions_in
from tests.simulation.redis import Link, named
from tests.simulation.toy import CLAIM, COUNT, Toy

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World


class CountLedger:
    """Checks that no offset is committed before it is counted, and no rejected one before its dead letter is stored.

    Attributes:
        dead_letters: Name → offsets of which the broker has a dead letter.
        records: Number of counted events, including repetitions.
        highest: Name → highest low watermark ever committed.
    """

    def __init__(self, log: Log, world: World) -> None:
        self._log = log
        self._world = world
        self.counted: dict[str, set[int]] = {name: set() for name in "ab"}
        self.dead_letters: dict[str, set[int]] = {name: set() for name in "ab"}
        self.highest: dict[str, int] = {}
        self.records = 0

    def on_record(self, record: OutgoingRecord) -> None:
        """Handle a dead letter that the broker has appended, acknowledged or not."""
        headers = dict(record.headers)
        name, offset = headers["toy"].decode(), int(headers["source-offset"])
        entry = self._log.entries[offset]
        if entry is None or entry.value or (entry.key, entry.value) != (record.key, record.value):
            self._world.report_fault("invented", f"{name} rejects {entry} as {record}")
        self.dead_letters[name].add(offset)

    def on_count(self, name: str, first: int, last: int) -> None:
        """Handle a counted range over which the fence has moved."""
        rejected = {offset for offset in range(first, last + 1) if (entry := self._log.entries[offset]) and not entry.value}
        if missing := rejected - self.dead_letters[name]:
            self._world.report_fault("fence", f"{name} has passed {sorted(missing)}, which have no dead letter")
        self.counted[name].update(range(first, last + 1))
        self.records += sum(entry is not None for entry in self._log.entries[first : last + 1])

    def on_loss(self, name: str) -> None:
        """Handle a loss of Redis: the events that were counted before need not be counted again."""

    def on_commit(self, before: PartitionCommit | None, commit: PartitionCommit, claimed_at: int) -> None:
        """Check a commit that the coordinator has accepted."""
        positions, former = positions_in(commit), positions_in(before)
        if commit.offset != min(positions.values()):
            self._world.report_fault("commit", f"offset {commit.offset} is not the lowest of {positions}")
        for name, at in positions.items():
            missing = set(range(at)) - self.counted[name]
            if any(self._log.entries[offset] for offset in missing):
                self._world.report_fault("commit", f"{name} committed up to {at}, {sorted(missing)} are not counted")
            if at < former.get(name, 0):
                self._world.report_fault("back", f"{name} went back from {former[name]} to {at}")
            self.highest[name] = max(at, self.highest.get(name, 0))


class _Toys(Processors):
    """The toy processors of one process."""

    topics: Collection[str] = ()

    def __init__(self, worker: Worker) -> None:
        self.topics = [worker.world.log.tp.topic]
        self._worker = worker

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, Processor]:
        """Return a processor for each name."""
        link = Link(self._worker, self._worker.world.server)
        claiming = Script("claim", link.register_script(with_included(CLAIM)))
        counting = Script("count", link.register_script(with_included(COUNT)))
        claiming.script.name, counting.script.name = "claim", "count"
        found: dict[str, Processor] = {}
        for name, keys in self._worker.world.subject.keys.items():
            rejecting = RejectingComponent("toy", name, self._worker.world.app_id, "dead")
            dead_letters = DeadLetterSender(rejecting, tp, Sender(self._worker), self._worker.trusted, lambda *_: None)
            meta, counts = (key.decode() for key in keys)
            found[name] = Toy(claiming, counting, link, meta, counts, dead_letters)
        return found


class Counting:
    """See :class:`tests.simulation.subject.Subject`."""

    is_exact = False
    release_seconds = 4.0
    reclaim_seconds = 0.0

    def __init__(self, world: World) -> None:
        """Create the subject with two processors."""
        self._world = world
        self.keys = {name: [f"{{{world.app_id}/{name}}}:{what}".encode() for what in ("meta", "counts")] for name in "ab"}
        self.ledger = CountLedger(world.log, world)
        self._name_of = {keys[0].decode(): name for name, keys in self.keys.items()}

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Return a context without limits."""
        yield

    def processors(self, worker: Worker) -> Processors:
        """Return the processors of a process, which are the same in each."""
        return _Toys(worker)

    def token(self, args: Sequence[Any]) -> bytes:
        """Return the token in the only argument of a script, a map."""
        return cast("bytes", named(args)["token"])

    def runs(self, name: str, keys: Sequence[str]) -> None:
        """Do nothing before a script."""

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """Report the counted events to the ledger."""
        if name == "count" and reply[0] == b"ok":
            given = named(args)
            self.ledger.on_count(self._name_of[keys[0]], int(given["fence"]) + 1, int(given["to"]))
        return name == "count"

    def is_whole(self) -> bool:
        """Whether every event is counted, including events that were counted before and lost."""
        fences = [self._world.server.client.hget(meta, "fence") for meta, _ in self.keys.values()]
        return all(int(cast("bytes", fence or b"-1")) + 1 >= self._world.log.end for fence in fences)

    def state(self, name: str) -> dict[Any, Any]:
        """Return token, fence, and the offset at which the state began."""
        return cast("dict[Any, Any]", self._world.server.client.hgetall(self.keys[name][0]))

    def check_end(self) -> None:
        """Check that every event was counted, and that Redis has counted each event once since the begin of its state."""
        log, client = self._world.log, self._world.server.client
        for name, (meta, counts) in self.keys.items():
            lost = [offset for offset, entry in enumerate(log.entries) if entry and offset not in self.ledger.counted[name]]
            if lost:
                self._world.report_fault("lost", f"{name} never counted {lost}")
            begin = int(cast("bytes", client.hget(meta, "begin")))
            expected = Counter(entry.key or b"" for entry in log.entries[begin:] if entry and entry.value)
            found = {key: int(count) for key, count in cast("dict[bytes, bytes]", client.hgetall(counts)).items()}
            if expected != found:
                self._world.report_fault("count", f"{name} counts {found}, events from {begin} on are {dict(expected)}")
            if begin and not self._world.server.losses:
                self._world.report_fault("count", f"{name} begins at {begin} although Redis kept its data")
