"""The faults of a schedule, as words."""

from __future__ import annotations

from dataclasses import dataclass

DYING = frozenset({"twice", "reason"})
"""A script that fails half-way may cause a second delivery of an event, under another id or for another reason: its sealed records
are in the outbox, and their events may be folded again. Servers do not end a script that has begun to write; the consequences of
such a failure must not be worse."""


def tolerated_in(words: str) -> frozenset[str]:
    """Return the kinds of violations that schedules with this mix tolerate, because scripts of folds fail half-way."""
    return DYING if any(f"dying:{script}" in words for script in ("fold", "seal", "unpack")) else frozenset()


@dataclass(frozen=True, slots=True)
class Mix:
    """The faults of a schedule.

    Attributes:
        faults: Names in :data:`tests.simulation.faults.FAULTS`, and ``lossy``, ``drops``, ``latest``, ``foldset``,
            ``rewind``, ``history`` (old events at first), ``behind`` (clocks of producers are slow), ``clocks``
            (clocks of workers are wrong, and are set meanwhile), ``stale`` (commits may wait seconds for the coordinator),
            ``overtaken`` (the connection of a commit may be cut, and the commit is executed after a newer one), ``settings``
            (workers have different settings), ``late`` (one more rollback, of an idle partition), ``redefined`` (views begin with a
            state of another definition), ``tabs`` (Redis loses the open tabs), ``operator`` (an operator drops open groups),
            ``dedupe`` (producers send events twice, and folds ignore duplicates), ``auto`` (quiet
            periods set themselves). The value is the factor of the usual probability.
        dying: Scripts that may fail half-way.
        fragile: Calls (``fold``, ``outbox``, …) whose requests and replies are often lost.
    """

    faults: dict[str, float]
    dying: tuple[str, ...] = ()
    fragile: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: str) -> Mix:
        """Parse words: ``wipe:3`` triples a probability, ``dying:fold`` fails scripts half-way, ``fragile:fold`` loses calls."""
        pairs = [word.partition(":") for word in words.split()]
        dying = tuple(value for name, _, value in pairs if name == "dying")
        fragile = tuple(value for name, _, value in pairs if name == "fragile")
        return cls({name: float(value or 1) for name, _, value in pairs if name not in ("dying", "fragile")}, dying, fragile)

    @property
    def is_calm(self) -> bool:
        """Whether there are no faults except wrong clocks of producers."""
        return self.faults.keys() <= {"behind", "dedupe", "auto"} and not self.dying and not self.fragile

    @property
    def is_gentle(self) -> bool:
        """Whether there are no faults except new assignments and claims, so that running functions may end."""
        return self.faults.keys() <= {"drops", "rebalance", "history"} and not self.dying and not self.fragile

    @property
    def has_unlike_workers(self) -> bool:
        """Whether the last worker must be one with all declared processors and settings."""
        return not self.faults.keys().isdisjoint({"foldset", "clocks", "settings"})

    @property
    def has_true_hubs(self) -> bool:
        """Whether no request of a hub and no message to a browser is lost."""
        return "hub" not in self.fragile and "lossy" not in self.faults

    @property
    def has_any(self) -> bool:
        """Whether there are any faults."""
        return bool(self.faults or self.dying or self.fragile)
