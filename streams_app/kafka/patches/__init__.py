"""Patches of aiokafka and Faust, one per file; ``README.md`` beside this file gives the reason and the gain of each.

:func:`install` patches classes and modules for the whole process. Patches of single objects are applied where the objects are
created: :func:`.fetch_times.watch`, :class:`.frames.ReceivingLoop`, :func:`.records.take_records`, :func:`.producer_end.end`.
"""

from __future__ import annotations

from streams_app.errors import ConfigurationError
from streams_app.kafka.patches.connections import expect_losses
from streams_app.kafka.patches.fetch_end import return_when_cancelled
from streams_app.kafka.patches.group_errors import raise_group_errors
from streams_app.kafka.patches.metadata import limit_metadata_requests
from streams_app.kafka.patches.oauth import answer_rejections
from streams_app.kafka.patches.private_names import faults
from streams_app.kafka.patches.reading_ahead import read_ahead
from streams_app.kafka.patches.record_batches import use_record_batches


def install() -> None:
    """Patch all Kafka clients of this process. Further calls have no effect.

    Raises:
        ConfigurationError: The installed versions lack a name that the patches use; no patch was applied.
    """
    if missing := faults():
        raise ConfigurationError(missing)
    expect_losses()
    answer_rejections()
    limit_metadata_requests()
    return_when_cancelled()
    raise_group_errors()
    use_record_batches()
    read_ahead()
