"""What becomes of wrong events: refused ones are sent to the dead letters until acknowledged, misrouted ones are counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from streams_app.backoff import Backoff
from streams_app.delivery.batch import TP
from streams_app.fold import Fold
from streams_app.folding.agents.dead_letters import dead_letter, without_content
from streams_app.folding.agents.parts import Parts
from streams_app.folding.reading.reader import Reading, Refused
from streams_app.kafka.producer import TOO_LARGE, Outgoing
from streams_app.metrics import Metrics
from streams_app.reasons import Reason

logger = logging.getLogger(__name__)


async def send_until_acknowledged(fold: Fold, refused: Sequence[Refused], tp: TP, parts: Parts) -> None:
    """Returns when the broker has every letter; a broker that is away is waited for.

    A letter that its topic will never take for its size is sent without its content: its headers still say where the event was.
    """
    now_ms = parts.clock.now_ms()
    app_id = parts.settings.app_id
    waiting = [(dead_letter(app_id, fold, one, tp.topic, tp.partition, now_ms), one.reason) for one in refused]
    backoff = Backoff(first_seconds=0.1, longest_seconds=1.0)
    while waiting:
        outcomes = await parts.producer.send([letter for letter, _ in waiting])
        unsent: list[tuple[Outgoing, Reason]] = []
        failed: BaseException | None = None
        for (letter, reason), outcome in zip(waiting, outcomes, strict=True):
            if outcome is None:
                parts.metrics.refused(fold.name, reason)
            elif isinstance(outcome, TOO_LARGE) and (letter.key or letter.value):
                logger.error("a refused event is too large for %s and is kept without its content", fold.dead_letters)
                unsent.append((without_content(letter), reason))
            else:
                failed = outcome
                unsent.append((letter, reason))
        waiting = unsent
        if failed is not None:
            if not backoff.failures:
                logger.warning(
                    "dead letters not acknowledged, trying again fold=%s source=%s-%d count=%d error=%r",
                    fold.name, tp.topic, tp.partition, len(waiting), failed,
                )  # fmt: skip
            await asyncio.sleep(backoff.failed())


def count_misrouted(name: str, reading: Reading, tp: TP, metrics: Metrics) -> None:
    """Counts the events of a fold that are keyed otherwise than they are grouped; warns at the first of them."""
    if metrics.is_first_misrouted(name):
        logger.warning(
            "events are keyed otherwise than they are grouped: a group may be split over partitions and its records come "
            "in no order; produce them with the group key as record key fold=%s source=%s-%d offset=%s count=%d",
            name, tp.topic, tp.partition, reading.misrouted_example, reading.misrouted,
        )  # fmt: skip
    metrics.misrouted_events.labels(fold=name).inc(reading.misrouted)


def tell_of_refused(folds: Iterable[Fold], metrics: Metrics) -> None:
    """Logs how many events were refused since it was last called, and why; nothing where none were."""
    topics = {fold.name: fold.dead_letters for fold in folds}
    for name, reasons in metrics.refused_since().items():
        logger.warning(
            "%d events refused in the last minute (%s) fold=%s dead_letters=%s",
            reasons.total(), ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()), name, topics.get(name, "?"),
        )  # fmt: skip
