"""What a claim does when the log is not the one that a processor has read."""

from __future__ import annotations

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.claim import LogBounds, OtherLogError
from streams_app.delivery.fingerprints import Fingerprint
from streams_app.delivery.log_continuity import Action, StoredPosition
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.partition import PartitionClaim
from streams_app.folding.agents.claim import policy_of
from tests.helpers.delivery.ownership import TP0, StubGroupConsumer, Taker, Worker

READ = (Fingerprint(30, 1), Fingerprint(49, 1))


class OneChecksum(StubGroupConsumer):
    """A log whose records below an offset have the checksum 1."""

    same_below = 1_000

    async def checksum_at(self, tp: TP, offset: int) -> int:
        return 1 if offset < self.same_below else 2


@pytest.mark.parametrize(
    ("same_below", "stored", "was_reset", "expected", "fewer"),
    [
        (1_000, StoredPosition(50, "x", READ), False, (Action.CONTINUE, 50), 0),
        (40, StoredPosition(50, "x", READ), False, (Action.REREAD, 31), 19),
        (1_000, StoredPosition(50, "x"), True, (Action.REREAD, 5), 45),
        (1_000, StoredPosition(50, "x"), False, (Action.CONTINUE, 50), 0),
    ],
    ids=["same", "truncated", "ends below a state of before fingerprints", "a possibly outdated end"],
)
async def test_lost_events_are_counted_and_lower_the_next_commit(
    same_below: int, stored: StoredPosition, was_reset: bool, expected: tuple[Action, int], fewer: int
) -> None:
    counted: list[int] = []
    group_consumer = OneChecksum()
    group_consumer.same_below = same_below
    worker = Worker(group_consumer, on_went_back=lambda name, events: counted.append(events))
    partition = worker.hold(Taker())
    partition.offsets.by_name = {"a": OffsetAndMetadata(50)}
    claim = PartitionClaim(TP0, "a", 1, "m", None, LogBounds(5, 40, 0), 1, "x", was_reset, _partition=partition)
    found = await claim.continuation(stored, policy_of("f"))

    assert expected == found
    assert [fewer] * bool(fewer) == counted
    assert 50 - fewer * (found.action is Action.REREAD) == partition.offsets.by_name["a"].offset
    await worker.end()


async def test_error_names_the_partition_the_cause_and_the_command() -> None:
    worker = Worker()
    partition = worker.hold(Taker())
    claim = PartitionClaim(TP0, "a", 1, "m", None, LogBounds(5, 40, 0), 1, "y", was_reset=False, _partition=partition)
    with pytest.raises(OtherLogError, match="t-0 is another log than the one that fold f has read") as raised:
        await claim.continuation(StoredPosition(50, "x"), policy_of("f"))

    assert raised.value.advice.startswith("the topic was deleted and created again. Run `streams-app reset --fold f`")
    await worker.end()
