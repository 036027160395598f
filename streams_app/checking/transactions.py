"""Checks for open transactions, which hide acknowledged events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from aiokafka.errors import KafkaError

from streams_app.delivery.batch import TP
from streams_app.finding import Finding, Level
from streams_app.kafka.admin import ANSWER_SECONDS
from streams_app.kafka.open_transactions import ADVICE, hidden_text
from streams_app.kafka.source_ends import SourceEnds
from streams_app.requirements.components import inputs_of
from streams_app.requirements.declarations import Declarations

STANDS_SECONDS: Final = 3.0
"""Time after which a transaction that is still open is reported. Shorter transactions are normal."""


async def transaction_findings(declarations: Declarations) -> AsyncGenerator[Finding, None]:
    """Report partitions in which a transaction stays open.

    A partition is reported if its last stable offset stays the same for some seconds, below the high watermark. Nothing is found if
    Kafka does not answer.
    """
    settings = declarations.settings
    asked = SourceEnds(settings.kafka, settings.app_id, sorted(inputs_of(declarations.running)))
    try:
        async with asyncio.timeout(ANSWER_SECONDS + STANDS_SECONDS):
            first = await _hidden(asked)
            if first:
                await asyncio.sleep(STANDS_SECONDS)  # a transaction that ends soon is normal
            second = await _hidden(asked) if first else {}
    except (KafkaError, OSError, TimeoutError):
        return  # the check of Kafka reports it
    finally:
        await asked.close()
    for tp, (stable, high) in sorted(second.items()):
        if first.get(tp, (-1, -1))[0] == stable:
            text = (
                f"{hidden_text(tp, high - stable, stable)}: they are acknowledged, and no consumer reads them before it has ended"
            )
            yield Finding(Level.WARNING, text, ADVICE)


async def _hidden(asked: SourceEnds) -> dict[TP, tuple[int, int]]:
    """Return the partitions with records that ``read_committed`` consumers do not see yet.

    In these partitions, the last stable offset is below the high watermark; the values are these two offsets.
    """
    await asked.ask_once()
    return {tp: (end, asked.high[tp]) for tp, end in asked.ends.items() if asked.high.get(tp, 0) > end}
