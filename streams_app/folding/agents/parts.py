"""What the processors of a worker have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from streams_app.delivery.trusted_clock import TrustedClock
from streams_app.folding.agents.held import Held
from streams_app.folding.store.scripts import ScriptSet
from streams_app.kafka.producer import AckedProducer
from streams_app.metrics import Metrics
from streams_app.settings import Settings
from streams_app.status import Status


@dataclass(slots=True)
class Parts:
    """What every processor is built from."""

    settings: Settings
    scripts: ScriptSet
    producer: AckedProducer
    clock: TrustedClock
    metrics: Metrics
    status: Status
    held: Held = field(default_factory=Held)
