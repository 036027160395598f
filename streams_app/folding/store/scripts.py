"""The scripts as Redis gets them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import files
from typing import Any, Final

import msgpack
from redis.asyncio import Redis
from redis.commands.core import AsyncScript

SCRIPTS: Final = ("claim", "define", "finish", "fold", "outbox", "seal", "skip", "watermark")

_INCLUDE: Final = re.compile(r"^-- include (\w+)\.lua$", re.MULTILINE)

Timer = Callable[[str], AbstractContextManager[Any]]
"""Measures one call of a script, by its name."""


def script_text(name: str) -> str:
    """A script as it is written."""
    return (files("streams_app.folding.store") / "lua" / f"{name}.lua").read_text("utf-8")


def with_included(text: str) -> str:
    """A script as it is run: with what it shares with others."""
    return _INCLUDE.sub(lambda found: script_text(f"shared/{found[1]}"), text)


class Script:
    """A script of Redis with its arguments as one named map."""

    def __init__(self, name: str, script: AsyncScript, timer: Timer) -> None:
        self._name = name
        self.script = script
        self._timer = timer
        self._pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack

    async def __call__(self, keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        """Runs it; redis-py sends it again when the server has forgotten it."""
        packed = self._pack(arguments)
        with self._timer(self._name):
            return await self.script(keys=keys, args=[packed])


class ScriptSet:
    """The scripts, loaded once a process."""

    def __init__(self, redis: Redis, timer: Timer = lambda _: nullcontext()) -> None:
        """Loads nothing yet.

        Args:
            redis: Of the application.
            timer: Measures each call.
        """
        self.redis = redis
        self.by_name = {name: Script(name, redis.register_script(with_included(script_text(name))), timer) for name in SCRIPTS}
