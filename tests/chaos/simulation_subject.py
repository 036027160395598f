"""What goes through a simulation: processors, where their state is in Redis, and what they must have done in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from streams_app.delivery.processor import Processors

if TYPE_CHECKING:
    from tests.chaos.simulation_worker import Worker


class Subject(Protocol):
    """One kind of processors."""

    @property
    def ledger(self) -> Any:
        """Checks what the outside world sees at the moment it sees it, see :class:`tests.chaos.simulation_ledger.Ledger`."""

    @property
    def keys(self) -> Mapping[str, Sequence[bytes]]:
        """Name of a processor → every key it may have in Redis; that with ``token`` and ``fence`` is the first."""

    @property
    def is_exact(self) -> bool:
        """Whether a commit that comes late may do harm, so that a member joins anew after one that had no answer."""

    @property
    def release_seconds(self) -> float:
        """So long a revocation may take, with its last commit."""

    @property
    def reclaim_seconds(self) -> float:
        """So long processors may take to end where their partition is claimed again by the same process."""

    def limits(self, seed: int) -> AbstractContextManager[None]:
        """Makes the product do less at once while a schedule is run."""

    def processors(self, worker: Worker) -> Processors:
        """As one process makes them; it may differ in which it knows, and how."""

    def token(self, args: Sequence[Any]) -> bytes:
        """Of the worker that calls a script with these arguments."""

    def runs(self, name: str, keys: Sequence[str]) -> None:
        """A script is about to be run."""

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """A script was run.

        Returns:
            Whether it put something aside that is to be sent: a moment worth coming back to.
        """

    def is_whole(self) -> bool:
        """Whether Redis has everything that it ought to have once nothing happens any more."""

    def state(self, name: str) -> Any:
        """What Redis has of a processor, for people."""

    def check_end(self) -> None:
        """Everything is healed and drained."""
