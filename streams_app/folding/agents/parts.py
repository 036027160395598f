"""What the partitions of a worker have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streams_app.clock import Clock
from streams_app.delivery.trusted_clock import TrustedClock
from streams_app.folding.store.scripts import ScriptSet
from streams_app.kafka.producer import AckedProducer
from streams_app.metrics import Metrics
from streams_app.settings import Settings
from streams_app.status import Status

if TYPE_CHECKING:
    from streams_app.folding.agents.processor import Partition


@dataclass(slots=True)
class Parts:
    """What every partition is built from."""

    settings: Settings
    scripts: ScriptSet
    producer: AckedProducer
    clock: Clock
    metrics: Metrics
    status: Status


@dataclass(frozen=True, slots=True)
class Hooks:
    """Whom a partition tells."""

    on_refused: Callable[[Partition, str, str], None]
    on_backlog: Callable[[Partition], None]
    on_crash: Callable[[BaseException], None]
    clock: TrustedClock
