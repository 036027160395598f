"""The subject of a simulation: processors, the keys of their state in Redis, and the checks of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from streams_app.delivery.processor import Processors

if TYPE_CHECKING:
    from tests.simulation.worker import Worker


class Subject(Protocol):
    """One kind of processor."""

    @property
    def ledger(self) -> Any:
        """Check every output when it becomes visible, see :class:`tests.simulation.ledger.Ledger`."""

    @property
    def keys(self) -> Mapping[str, Sequence[bytes]]:
        """Name of a processor → every key it may have in Redis; the first one has ``token`` and ``fence``."""

    @property
    def is_exact(self) -> bool:
        """Whether a late commit may do harm, so that a member joins again after a commit without an answer."""

    @property
    def release_seconds(self) -> float:
        """Maximum duration of a revocation, including its last commit."""

    @property
    def reclaim_seconds(self) -> float:
        """Time within which processors must end if the same process claims their partition again."""

    def limits(self, seed: int) -> AbstractContextManager[None]:
        """Lower the limits of the product while a schedule runs."""

    def processors(self, worker: Worker) -> Processors:
        """Return the processors of one process; processes may differ in their processors and settings."""

    def token(self, args: Sequence[Any]) -> bytes:
        """Return the token of the worker that calls a script with these arguments."""

    def runs(self, name: str, keys: Sequence[str]) -> None:
        """Handle a script that is about to run."""

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """Handle a script that has run.

        Returns:
            Whether it stored something that must be sent: a good time for a snapshot.
        """

    def is_whole(self) -> bool:
        """Whether the work is complete after the last event."""

    def state(self, name: str) -> Any:
        """Return the state of a processor in Redis, for people."""

    def check_end(self) -> None:
        """Check the results after the faults and the drain."""
