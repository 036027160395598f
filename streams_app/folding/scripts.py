"""The scripts as Redis gets them."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

SCRIPTS: Final = ("claim", "define", "finish", "fold", "seal", "skip", "stage", "watermark")

_INCLUDE: Final = re.compile(r"^-- include (\w+)\.lua$", re.MULTILINE)


def script_text(name: str) -> str:
    """A script as it is written."""
    return (files("streams_app.folding") / "lua" / f"{name}.lua").read_text("utf-8")


def with_included(text: str) -> str:
    """A script as it is run: with what it shares with others."""
    return _INCLUDE.sub(lambda found: script_text(found[1]), text)


class ScriptSet:
    """The scripts, loaded once a process; redis-py sends a script again when the server has forgotten it."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.by_name: dict[str, AsyncScript] = {name: redis.register_script(with_included(script_text(name))) for name in SCRIPTS}
