"""Loads the Lua scripts of shards into Redis."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from redis.asyncio import Redis

from streams_app.delivery import scripts
from streams_app.delivery.scripts import Script, Timer, unmeasured

SCRIPTS: Final = ("claim", "define", "finish", "fold", "outbox", "rewind", "seal", "skip", "watermark")


def script_text(name: str) -> str:
    """Return the text of ``lua/<name>.lua`` in this folder, without included files."""
    return (files("streams_app.folding.store") / "lua" / f"{name}.lua").read_text("utf-8")


def with_included(text: str) -> str:
    """Return the text of a script in which each line ``-- include FILE`` is replaced by that file, recursively.

    The file is searched for in ``delivery/lua``, then in ``lua/shared``.
    """
    return scripts.with_included(text, lambda name: script_text(f"shared/{name}"))


class FoldScripts:
    """The Lua scripts of shards by name, registered once per process."""

    def __init__(self, redis: Redis, timer: Timer = unmeasured) -> None:
        self.redis = redis
        self.by_name = {name: Script(name, redis.register_script(with_included(script_text(name))), timer) for name in SCRIPTS}
