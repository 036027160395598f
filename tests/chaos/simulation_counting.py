"""The toy in a simulation: two of it count the events of one source by their keys, and refuse those without a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from streams_app.delivery.batch import TP
from streams_app.delivery.dead_letters import DeadLetters, RejectingComponent
from streams_app.delivery.group_consumer import Committed
from streams_app.delivery.processor import Processor, Processors
from streams_app.delivery.producer import Outgoing
from streams_app.delivery.scripts import Script, with_included
from tests.chaos.simulation_kafka import Log, Sender
from tests.chaos.simulation_ledger import marks_in
from tests.chaos.simulation_redis import Link, named
from tests.toy import CLAIM, COUNT, Toy

if TYPE_CHECKING:
    from tests.chaos.simulation import World
    from tests.chaos.simulation_worker import Worker


class CountLedger:
    """Checks that no offset is passed over before it has been counted, and none that is refused before it is a dead letter.

    Attributes:
        letters: Name → offsets of which the broker has a dead letter.
        records: Events counted, each time.
        highest: Name → highest mark ever committed.
    """

    def __init__(self, log: Log, world: World) -> None:
        self._log = log
        self._world = world
        self.counted: dict[str, set[int]] = {name: set() for name in "ab"}
        self.letters: dict[str, set[int]] = {name: set() for name in "ab"}
        self.highest: dict[str, int] = {}
        self.records = 0

    def on_record(self, record: Outgoing) -> None:
        """The broker has appended a dead letter, acknowledged or not."""
        headers = dict(record.headers)
        name, offset = headers["toy"].decode(), int(headers["source-offset"])
        entry = self._log.entries[offset]
        if entry is None or entry.value or (entry.key, entry.value) != (record.key, record.value):
            self._world.report_fault("invented", f"{name} refuses {entry} as {record}")
        self.letters[name].add(offset)

    def on_count(self, name: str, first: int, last: int) -> None:
        """A range was counted, and the fence has moved over it."""
        refused = {offset for offset in range(first, last + 1) if (entry := self._log.entries[offset]) and not entry.value}
        if missing := refused - self.letters[name]:
            self._world.report_fault("fence", f"{name} has passed {sorted(missing)}, which are no dead letters")
        self.counted[name].update(range(first, last + 1))
        self.records += sum(entry is not None for entry in self._log.entries[first : last + 1])

    def on_loss(self, name: str) -> None:
        """What was counted is in what Redis had then: it need not be counted again."""

    def on_commit(self, before: Committed | None, mark: Committed, claimed_at: int) -> None:
        """The coordinator has taken a commit."""
        marks, former = marks_in(mark), marks_in(before)
        if mark.offset != min(marks.values()):
            self._world.report_fault("commit", f"offset {mark.offset} is not the lowest of {marks}")
        for name, at in marks.items():
            missing = set(range(at)) - self.counted[name]
            if any(self._log.entries[offset] for offset in missing):
                self._world.report_fault("commit", f"{name} committed up to {at}, {sorted(missing)} are not counted")
            if at < former.get(name, 0):
                self._world.report_fault("back", f"{name} went back from {former[name]} to {at}")
            self.highest[name] = max(at, self.highest.get(name, 0))


class _Toys(Processors):
    """What one process has."""

    topics: Collection[str] = ()

    def __init__(self, worker: Worker) -> None:
        self.topics = [worker.world.log.tp.topic]
        self._worker = worker

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, Processor]:
        """One for each name; both know the same."""
        link = Link(self._worker, self._worker.world.server)
        claiming = Script("claim", link.register_script(with_included(CLAIM)))
        counting = Script("count", link.register_script(with_included(COUNT)))
        claiming.script.name, counting.script.name = "claim", "count"
        found: dict[str, Processor] = {}
        for name, keys in self._worker.world.subject.keys.items():
            refuser = RejectingComponent("toy", name, self._worker.world.app_id, "dead")
            letters = DeadLetters(refuser, tp, Sender(self._worker), self._worker.trusted, lambda *_: None)
            meta, counts = (key.decode() for key in keys)
            found[name] = Toy(claiming, counting, link, meta, counts, letters)
        return found


class Counting:
    """See :class:`tests.chaos.simulation_subject.Subject`."""

    is_exact = False
    release_seconds = 4.0
    reclaim_seconds = 0.0

    def __init__(self, world: World) -> None:
        """Two names."""
        self._world = world
        self.keys = {name: [f"{{{world.app_id}/{name}}}:{what}".encode() for what in ("meta", "counts")] for name in "ab"}
        self.ledger = CountLedger(world.log, world)
        self._name_of = {keys[0].decode(): name for name, keys in self.keys.items()}

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """There are none."""
        yield

    def processors(self, worker: Worker) -> Processors:
        """The same in every process."""
        return _Toys(worker)

    def token(self, args: Sequence[Any]) -> bytes:
        """Scripts have one argument, a map."""
        return cast("bytes", named(args)["token"])

    def runs(self, name: str, keys: Sequence[str]) -> None:
        """Nothing is to be known of it."""

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """Tells the ledger what was counted."""
        if name == "count" and reply[0] == b"ok":
            given = named(args)
            self.ledger.on_count(self._name_of[keys[0]], int(given["fence"]) + 1, int(given["to"]))
        return name == "count"

    def is_whole(self) -> bool:
        """Everything is counted, also what was counted before and lost."""
        fences = [self._world.server.client.hget(meta, "fence") for meta, _ in self.keys.values()]
        return all(int(cast("bytes", fence or b"-1")) + 1 >= self._world.log.end for fence in fences)

    def state(self, name: str) -> dict[Any, Any]:
        """Token, fence, and where the state began."""
        return cast("dict[Any, Any]", self._world.server.client.hgetall(self.keys[name][0]))

    def check_end(self) -> None:
        """Every event was counted, and what Redis has counts each event once from where its state began."""
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
