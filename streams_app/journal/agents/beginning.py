"""Determines the offset from which a journal reads a partition after a claim.

If Redis has the state of the shard, the journal continues after the fence. Otherwise, it starts at the first record that is not
older than the setting ``keep``.
"""

from __future__ import annotations

import logging
from typing import Final

from streams_app.delivery.claim import Claim, LogBounds
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.log_continuity import Action, LogVerdict, Policy, StoredPosition
from streams_app.journal.store.journal_store import InitialState, JournalClaim, JournalStore
from streams_app.settings import JournalSettings

logger = logging.getLogger(__name__)

ACTIONS: Final = {
    LogVerdict.SAME: Action.CONTINUE,
    LogVerdict.RECREATED: Action.REJECT,
    LogVerdict.TRUNCATED: Action.REREAD,
    LogVerdict.WENT_BACK: Action.REJECT,
    LogVerdict.SHORTER: Action.REJECT,
    LogVerdict.UNCOMPARED: Action.CONTINUE,
    LogVerdict.UNIDENTIFIED: Action.CONTINUE,
}
"""A journal may have events that the log no longer has, so only an operator may have them removed."""


def policy_of(journal: str) -> Policy:
    """Return what a journal does if the log is not the one that was read."""
    advice = f"Run `streams-app reset --journal {journal}` to read the present topic; the former entries are removed."
    return Policy(f"journal {journal}", ACTIONS, advice)


async def claim_state(store: JournalStore, journal: JournalSettings, claim: Claim, clock: TrustedClock) -> JournalClaim:
    """Claim the state of a shard in Redis, and return it; if Redis has none, create it.

    If the log was truncated, the segment with the first offset that may have changed and all later segments are removed from the
    state, to be filled again from the log.
    """
    found = await store.claim(claim.topic_id, claim.partitions)
    if found is None:
        return await _create_state(store, journal, claim, clock)
    stored = StoredPosition(found.fence + 1, found.topic_id, found.log)
    action, common = await claim.continuation(stored, policy_of(journal.name))
    if action is not Action.REREAD:
        return found
    cut = await store.claim(claim.topic_id, claim.partitions, fence_at_most=common)
    assert cut is not None  # the state exists: the first claim has found it
    logger.warning(
        "the log of a journal went back: rebuilt from offset %d journal=%s source=%s", cut.fence + 1, journal.name, claim.tp
    )  # fmt: skip
    return cut


def lost(fence: int, bounds: LogBounds) -> range:
    """Return the offsets after ``fence`` that retention removed before they were appended; empty if there are none (pure)."""
    return range(fence + 1, max(fence + 1, bounds.begin))


async def _create_state(store: JournalStore, journal: JournalSettings, claim: Claim, clock: TrustedClock) -> JournalClaim:
    """Create the state of a shard that starts as far back as the journal keeps events, even below the committed offset."""
    oldest_ms = clock.now_ms() - journal.keep_ms
    start = await claim.offset_at(oldest_ms)
    bounds = await claim.log_bounds_now()
    begin = max(bounds.begin, start)
    logger.info("journal starts to read its source journal=%s source=%s offset=%d", journal.name, claim.tp, begin)
    created = await store.claim(claim.topic_id, claim.partitions, begin=InitialState(begin - 1, oldest_ms))
    assert created is not None  # with a beginning, the claim creates the state
    return created
