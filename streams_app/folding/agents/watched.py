"""What the watchdog looks at: how far partitions are, as the delivery says, and their shards, as folding says."""

from __future__ import annotations

from dataclasses import dataclass

from streams_app.delivery.batch import TP
from streams_app.delivery.ownership import Ownership
from streams_app.folding.agents.held import Held
from streams_app.folding.agents.known import LastKnown
from streams_app.folding.agents.lag import ShardKey


@dataclass(frozen=True, slots=True)
class WatchedFolding:
    """Folding as a :class:`streams_app.watchdog.Watched`; safe to call from any thread."""

    ownership: Ownership
    held: Held

    @property
    def known(self) -> LastKnown:
        """What was last known of each shard."""
        return self.held.known

    def positions(self) -> dict[TP, int]:
        """The offset up to which every assigned partition is done."""
        return self.ownership.positions()

    def fences(self) -> dict[ShardKey, int]:
        """Highest offset folded of every shard the worker has."""
        return self.held.fences()

    def read_end(self, tp: TP) -> int | None:
        """End of a partition as the last fetch named it."""
        return self.ownership.read_end(tp)
