"""What is changed in aiokafka and Faust, one file a patch: see ``README.md`` beside this file for each one's reason and gain.

:func:`install` patches classes and modules, for the whole process. What concerns one object is applied where that object is made:
:func:`.fetch_times.watch`, :class:`.frames.ReceivingLoop`, :func:`.records.taken`, :func:`.producer_end.end`.
"""

from __future__ import annotations

from streams_app.errors import ConfigurationError
from streams_app.kafka.patches.connections import expect_losses
from streams_app.kafka.patches.group_errors import heed_group_errors
from streams_app.kafka.patches.metadata import ask_politely
from streams_app.kafka.patches.oauth import answer_rejections
from streams_app.kafka.patches.private_names import faults
from streams_app.kafka.patches.reading_ahead import read_ahead
from streams_app.kafka.patches.record_batches import use_record_batches


def install() -> None:
    """From now on clients of this process may run on uvloop, make no topic, read any header, and heed errors; may be called again.

    Raises:
        ConfigurationError: What the patches touch is not in the installed versions; this call has patched nothing.
    """
    if missing := faults():
        raise ConfigurationError(missing)
    expect_losses()
    answer_rejections()
    ask_politely()
    heed_group_errors()
    use_record_batches()
    read_ahead()
