"""The scripts as Redis gets them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

SCRIPTS: Final = ("claim", "define", "finish", "fold", "outbox", "seal", "skip", "stage", "watermark")

AGAIN: Final = [b"again"]

_INCLUDE: Final = re.compile(r"^-- include (\w+)\.lua$", re.MULTILINE)


def script_text(name: str) -> str:
    """A script as it is written."""
    return (files("streams_app.folding.store") / "lua" / f"{name}.lua").read_text("utf-8")


def with_included(text: str) -> str:
    """A script as it is run: with what it shares with others."""
    return _INCLUDE.sub(lambda found: script_text(found[1]), text)


class Script:
    """A script of Redis, called again for as long as it says so: see ``beyond.lua``."""

    def __init__(self, script: AsyncScript) -> None:
        self.script = script

    async def __call__(self, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Runs it; redis-py sends it again when the server has forgotten it."""
        while (reply := await self.script(keys=keys, args=args)) == AGAIN:
            pass
        return reply


class ScriptSet:
    """The scripts, loaded once a process."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.by_name = {name: Script(redis.register_script(with_included(script_text(name)))) for name in SCRIPTS}
