"""Scripts of Redis on fenced state, for processors that keep theirs there: with arguments by name, and measured.

A script names its arguments in one map, so that neither side counts places. Its text may have a line ``-- include fenced.lua``:
what stands in ``delivery/lua/fenced.lua`` is put there, which checks the token and the fence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import files
from typing import Any, Final

import msgpack

_INCLUDE: Final = re.compile(r"^-- include (\w+)\.lua$", re.MULTILINE)

Timer = Callable[[str], AbstractContextManager[Any]]
"""Measures one call of a script, by its name."""


def unmeasured(_: str) -> AbstractContextManager[Any]:
    """The timer of scripts that nobody measures."""
    return nullcontext()


def fenced(name: str) -> str:
    """Lua that scripts on fenced state share; "" where this layer has none of that name."""
    found = files("streams_app.delivery") / "lua" / f"{name}.lua"
    return found.read_text("utf-8") if found.is_file() else ""


def with_included(text: str, shared: Callable[[str], str] = lambda _: "") -> str:
    """A script as it is run: each include line is replaced by what it names, also in what was included.

    Args:
        text: The script as it is written.
        shared: Name → Lua of the processor's own scripts; asked where this layer has none.
    """
    return _INCLUDE.sub(lambda found: with_included(fenced(found[1]) or shared(found[1]), shared), text)


class FencedError(Exception):
    """Whoever asked does not find his state as he left it; nothing was written.

    Attributes:
        script: Name of the script, or of the step.
        cause: Why, in one word; those of ``fenced.lua`` are ``no-state``, ``token`` and ``fence``.
    """

    def __init__(self, script: str, cause: str) -> None:
        super().__init__(f"{script} refused: {cause}")
        self.script = script
        self.cause = cause


class Script:
    """A script of Redis with its arguments as one named map."""

    def __init__(self, name: str, script: Any, timer: Timer = unmeasured) -> None:
        """Loads nothing yet.

        Args:
            name: Name of the script, for the timer.
            script: What ``register_script`` of redis-py has made of its text.
            timer: Measures each call.
        """
        self._name = name
        self.script = script
        self._timer = timer
        self._pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack

    async def __call__(self, keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        """Runs it; redis-py sends it again when the server has forgotten it.

        Args:
            keys: Keys of the state in the order of the script; the first one is the hash with the marks.
            arguments: Arguments by name; one that is None is missing for the script.

        Raises:
            FencedError: It has returned ``refused`` and a cause.
            redis.exceptions.RedisError: Its outcome is unknown unless the server says otherwise.
        """
        packed = self._pack(arguments)
        with self._timer(self._name):
            reply = await self.script(keys=keys, args=[packed])
        if reply and reply[0] == b"refused":
            raise FencedError(self._name, reply[1].decode())
        return reply
