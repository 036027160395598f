"""Every Redis key of live views, in two tables: keys of a view and partition, and keys of a presence view.

The first table is that of views with the kind ``count`` or ``list``, which show the items of a topic. A *presence view*, with the
kind ``presence``, shows the open browser tabs.

=================================================  ======  ===================================================================
key (after ``{app/live.VIEW/topic/part}:v1:``)      type    holds
=================================================  ======  ===================================================================
``meta``                                           hash    token, fence, seq, clock, reading, whole_ms, partitions (see
                                                           ``ShardHead``), definition, topic_id, log (fingerprints of what
                                                           was applied)
``pages``                                          hash    for each page with items, or in ``dropped``: the seq of its last
                                                           change
``due``                                            zset    pages with items; the score is the time of the oldest item
``items:<page>``                                   zset    items of a page; the score is the time of the item
``data:<page>``                                    hash    payload of each item; only if the kind of the view is ``list``
``dropped``                                        zset    pages that have dropped items beyond ``max_items``; the score is the
                                                           time of the newest dropped item; until it would have expired
=================================================  ======  ===================================================================

=================================================  ======  ===================================================================
key (after ``{app/live.VIEW}:v1:``)                 type    holds
=================================================  ======  ===================================================================
``here:<page>``                                    zset    open browser tabs; the score is the expiry time of the tab in ms
``marker``                                         string  random text; a new value shows that Redis lost data
=================================================  ======  ===================================================================

The worker whose token is in ``meta`` writes the keys of the first table. ``meta``, ``pages``, ``due`` and ``dropped`` exist as long
as the view is deployed, ``items:`` and ``data:`` until the last item of the page has expired.
All hubs write the keys of the second table; each key expires after twice the expiry of the view. If Redis loses data, the first
table is restored from Kafka and the second from open browsers.
The dot in ``live.VIEW`` distinguishes these hash tags from those of folds and subscribers, whose names contain no dot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STATE_VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class ViewKeys:
    """The Redis keys of one view and partition, in the order of the scripts' KEYS.

    ``items_prefix`` and ``data_prefix`` are prefixes: the keys of a page consist of a prefix and the name of the page.
    """

    meta: str
    pages: str
    due: str
    items_prefix: str
    data_prefix: str
    dropped: str

    @property
    def in_order(self) -> list[str]:
        return [self.meta, self.pages, self.due, self.items_prefix, self.data_prefix, self.dropped]


def view_keys(app_id: str, view: str, topic: str, partition: int) -> ViewKeys:
    """Build the keys of one view and partition. No name has a brace or a slash: the settings check that."""
    base = f"{{{app_id}/live.{view}/{topic}/{partition}}}:{STATE_VERSION}"
    return ViewKeys(f"{base}:meta", f"{base}:pages", f"{base}:due", f"{base}:items:", f"{base}:data:", f"{base}:dropped")


@dataclass(frozen=True, slots=True)
class PresenceKeys:
    """The Redis keys of one presence view, in the order of the script's KEYS; ``here_prefix`` precedes the name of a page."""

    marker: str
    here_prefix: str

    @property
    def in_order(self) -> list[str]:
        return [self.marker, self.here_prefix]


def presence_keys(app_id: str, view: str) -> PresenceKeys:
    """Build the keys of one presence view."""
    base = f"{{{app_id}/live.{view}}}:{STATE_VERSION}"
    return PresenceKeys(f"{base}:marker", f"{base}:here:")


def view_pattern(app_id: str, view: str) -> str:
    """Return the ``SCAN`` pattern of the keys of all partitions of a view, for any topic and state version."""
    return f"{{{app_id}/live.{view}/*"


def meta_pattern(app_id: str) -> str:
    """Return the ``SCAN`` pattern of the ``meta`` keys, one for each view and partition, for any state version."""
    return f"{{{app_id}/live.*/*}}:*:meta"


def presence_pattern(app_id: str, view: str) -> str:
    """Return the ``SCAN`` pattern of the keys of a presence view."""
    return f"{{{app_id}/live.{view}}}*"
