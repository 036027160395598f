"""The Lua scripts of shards."""

from __future__ import annotations

from streams_app.delivery.scripts import ScriptSet


class FoldScripts(ScriptSet):
    """The scripts that :class:`.ShardStore` calls."""

    package = "streams_app.folding.store"
