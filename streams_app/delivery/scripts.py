"""Runs Redis scripts on fenced state, with named arguments and a timer for each call.

A script takes its arguments as one map. A line ``-- include fenced.lua`` in its text is replaced by ``delivery/lua/fenced.lua``,
which checks the token and the fence.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import files
from typing import Any, Final, Protocol

import msgpack

from streams_app.errors import NewerFormatError

_INCLUDE: Final = re.compile(r"^-- include (\w+)\.lua$", re.MULTILINE)

Timer = Callable[[str], AbstractContextManager[Any]]
"""Takes the name of a script, and returns a context manager that measures one call of it."""


def unmeasured(_: str) -> AbstractContextManager[Any]:
    """Measure nothing."""
    return nullcontext()


def delivery_lua(name: str) -> str:
    """Return the text of ``delivery/lua/<name>.lua``, which scripts include; "" if that file does not exist."""
    found = files("streams_app.delivery") / "lua" / f"{name}.lua"
    return found.read_text("utf-8") if found.is_file() else ""


def with_included(text: str, shared: Callable[[str], str] = lambda _: "") -> str:
    """Return the source of a script, with include lines replaced recursively.

    If ``delivery/lua`` has no file of an included name, ``shared`` returns its text.
    """
    return _INCLUDE.sub(lambda found: with_included(delivery_lua(found[1]) or shared(found[1]), shared), text)


class FencedError(Exception):
    """A script or step wrote nothing, because the state is not as the caller left it.

    Attributes:
        script: Name of the script or step.
        cause: The cause, one word; those of ``fenced.lua`` are ``no-state``, ``token`` and ``fence``.
    """

    def __init__(self, script: str, cause: str) -> None:
        super().__init__(f"{script} refused: {cause}")
        self.script = script
        self.cause = cause


class NewerStateError(NewerFormatError, FencedError):
    """A script wrote nothing, because a newer version of this project owns or owned the state, and has changed its format.

    Attributes:
        cause: ``token``, because a worker of the newer version has claimed the state.
    """

    def __init__(self, script: str, key: str, found: str) -> None:
        NewerFormatError.__init__(self, f"{key} in Redis", found)
        self.script = script
        self.cause = "token"


class Script:
    """A Redis script that takes its arguments as one map; a call that the script rejects raises :class:`FencedError`."""

    def __init__(self, name: str, script: Any, timer: Timer = unmeasured) -> None:
        """Wrap the result of ``register_script`` of redis-py, without loading the script."""
        self._name = name
        self.script = script
        self._timer = timer
        self._pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack

    async def __call__(self, keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        """Run the script; redis-py loads it if the server does not have it.

        Args:
            keys: Keys of the state in the order of the script; the first one is the hash with the fence.
            arguments: Arguments by name; the script does not see those that are None.

        Raises:
            FencedError: The script has returned ``refused`` and a cause.
            NewerStateError: The state has the format of a newer version.
            redis.exceptions.RedisError: The call failed. Unless the server answered, it is unknown whether the script has run.
        """
        packed = self._pack(arguments)
        with self._timer(self._name):
            reply = await self.script(keys=keys, args=[packed])
        if reply and reply[0] == b"refused":
            if reply[1] == b"newer-format":
                raise NewerStateError(self._name, keys[0], reply[2].decode())
            raise FencedError(self._name, reply[1].decode())
        return reply


class Scripts(Protocol):
    """Set of scripts that work on one kind of state, in Redis or in memory."""

    @property
    def by_name(self) -> Mapping[str, Callable[[Sequence[str], Mapping[str, Any]], Awaitable[Any]]]:
        """Functions by the names of their scripts; a function takes keys and arguments, and returns the reply of the script."""
