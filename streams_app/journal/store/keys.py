"""Every Redis key of journals, in one table.

=====================================================  ====  ====================================================================
key (after ``{app/journal.NAME/topic/part}:v1:``)       type  holds
=====================================================  ====  ====================================================================
``meta``                                               hash  token, owner, fence, clock, topic_id, partitions, log (fingerprints
                                                             of what was appended), change (number of the last change of the
                                                             owner that the fence does not tell)
``segments``                                           zset  first offset of a segment → itself
``about``                                              hash  first offset of a segment → what it is, see ``Segment``; staged:
                                                             which blocks are being written
``blocks:<first>:<generation>``                        zset  blocks of a segment, all scores 0, see ``core/block.py``
=====================================================  ====  ====================================================================

Owner: the worker whose token is in ``meta``. Keys live as long as the journal is deployed, blocks until their segment is removed.
All of it can be rebuilt from the topic, as far back as that reaches. ``about`` names every key of blocks. The dot in
``journal.NAME`` keeps these hash tags apart from those of folds and subscribers, whose names have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STATE_VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class JournalKeys:
    """The keys of one journal and partition, in the order of script arguments; the last is a prefix."""

    meta: str
    segments: str
    about: str
    blocks_prefix: str

    @property
    def in_order(self) -> list[str]:
        """All keys, in the order of script arguments."""
        return [self.meta, self.segments, self.about, self.blocks_prefix]


def journal_keys(app_id: str, journal: str, topic: str, partition: int) -> JournalKeys:
    """Return the keys of one journal and partition.

    Args:
        app_id: Id of the application. Settings ensure that it, the journal and the topic have no brace and no slash.
        journal: Name of the journal.
        topic: The source.
        partition: Partition of the source.
    """
    base = f"{{{app_id}/journal.{journal}/{topic}/{partition}}}:{STATE_VERSION}"
    return JournalKeys(f"{base}:meta", f"{base}:segments", f"{base}:about", f"{base}:blocks:")


def journal_pattern(app_id: str, journal: str) -> str:
    """Return the ``SCAN`` pattern of all keys of a journal, whatever the topic and the version of the state."""
    return f"{{{app_id}/journal.{journal}/*"
