"""The Redis keys of journals: content, writer and lifetime of each.

=====================================================  ====  ====================================================================
key (after ``{app/journal.NAME/topic/part}:v1:``)       type  holds
=====================================================  ====  ====================================================================
``meta``                                               hash  token, owner, fence, clock, topic_id, partitions, log (fingerprints
                                                             of the appended records), change (number of the owner's last change
                                                             that did not move the fence)
``segments``                                           zset  first offsets of the segments; each is its own score
``about``                                              hash  description of each segment by its first offset, see ``Segment``;
                                                             ``staged``: names of the blocks that are being written
``blocks:<first>:<generation>``                        zset  blocks of a segment, all with score 0, see ``core/block.py``
=====================================================  ====  ====================================================================

The only writer is the process whose token is in ``meta``: a worker, or ``journal drop``. The keys do not expire. Blocks are removed
with their segment, and ``reset`` removes all keys; their content can be rebuilt from the topic, as far back as its retention
reaches. ``<first>`` is the first offset of the segment. ``<generation>`` changes when its blocks are replaced by compressed ones.
Every existing key of blocks follows from an entry of ``about``. ``partitions`` is the number of partitions of the source. The dot
in ``journal.NAME`` distinguishes these hash tags from those of folds and subscribers, whose names have no dot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STATE_VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class JournalKeys:
    """The Redis keys of one journal and partition, in the order of script arguments.

    ``blocks_prefix`` is not a key, but the beginning of the keys ``blocks:<first>:<generation>``.
    """

    meta: str
    segments: str
    about: str
    blocks_prefix: str

    @property
    def in_order(self) -> list[str]:
        return [self.meta, self.segments, self.about, self.blocks_prefix]


def journal_keys(app_id: str, journal: str, topic: str, partition: int) -> JournalKeys:
    """Return the Redis keys of one journal and partition. No name has a brace or a slash: the settings check that."""
    base = f"{{{app_id}/journal.{journal}/{topic}/{partition}}}:{STATE_VERSION}"
    return JournalKeys(f"{base}:meta", f"{base}:segments", f"{base}:about", f"{base}:blocks:")


def journal_pattern(app_id: str, journal: str) -> str:
    """Return the ``SCAN`` pattern of all keys of a journal, with any topic and any version of the state."""
    return f"{{{app_id}/journal.{journal}/*"
