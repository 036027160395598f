"""Runs Redis scripts on fenced state, with named arguments and a timer for each call.

A script is a file in the folder ``lua`` of a package, and takes its arguments as one map. A line ``-- include fenced.lua`` in its
text is replaced by ``delivery/lua/fenced.lua``, which checks the token and the fence.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import msgpack

from streams_app.errors import STATE_FORMAT, NewerFormatError

if TYPE_CHECKING:  # pure modules use the errors of this module, and import no I/O
    from redis.asyncio import Redis

_DELIVERY: Final = "streams_app.delivery"
_INCLUDE: Final = re.compile(r"^-- include (\w+)\.lua$", re.MULTILINE)

Timer = Callable[[str], AbstractContextManager[Any]]
"""Takes the name of a script, and returns a context manager that measures one call of it."""


def unmeasured(_: str) -> AbstractContextManager[Any]:
    """Measure nothing."""
    return nullcontext()


@cache
def script_text(package: str, name: str) -> str:
    """Return the text of ``lua/<name>.lua`` in a package, in which include lines are not replaced."""
    return (files(package) / "lua" / f"{name}.lua").read_text("utf-8")


def with_included(text: str, package: str = _DELIVERY) -> str:
    """Return the source of a script, with include lines replaced recursively.

    An included file is searched for in ``delivery/lua``, then in ``lua/shared`` of the package.
    """

    def included(found: re.Match[str]) -> str:
        is_of_delivery = (files(_DELIVERY) / "lua" / f"{found[1]}.lua").is_file()
        where = (_DELIVERY, found[1]) if is_of_delivery else (package, f"shared/{found[1]}")
        return with_included(script_text(*where), package)

    return _INCLUDE.sub(included, text)


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
        NewerFormatError.__init__(self, f"{key} in Redis", found, STATE_FORMAT)
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
        packed = self._packed(arguments)
        with self._timer(self._name):
            reply = await self.script(keys=keys, args=[packed])
        if reply and reply[0] == b"refused":
            if reply[1] == b"newer-format":
                raise NewerStateError(self._name, keys[0], reply[2].decode())
            raise FencedError(self._name, reply[1].decode())
        return reply

    def _packed(self, arguments: Mapping[str, Any]) -> bytes:
        """Pack the arguments as one msgpack map."""
        if not any(type(value) is PackedArgument for value in arguments.values()):
            return self._pack(arguments)
        parts = [b"\xde", len(arguments).to_bytes(2, "big")]
        for name, value in arguments.items():
            parts += (self._pack(name), value.packed if type(value) is PackedArgument else self._pack(value))
        return b"".join(parts)


class PackedArgument(NamedTuple):
    """An argument that is msgpack already."""

    packed: bytes


class ScriptSet:
    """All scripts of one package, registered with one Redis client; Redis loads each at its first call.

    A subclass sets ``package``, and ``prefix``, with which the names of its scripts begin in errors and metrics.

    Attributes:
        redis: The client.
        by_name: The scripts by name, which is the name of the file in ``lua/`` without its extension.
    """

    package: ClassVar[str]
    prefix: ClassVar[str] = ""

    def __init__(self, redis: Redis, timer: Timer = unmeasured) -> None:
        """Register the scripts, without connecting; ``timer`` measures each call."""
        self.redis = redis
        self.by_name = {
            name: Script(f"{self.prefix}{name}", redis.register_script(self.source(name)), timer) for name in self.names()
        }

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the scripts in alphabetical order."""
        found = (path.name for path in (files(cls.package) / "lua").iterdir())
        return sorted(name.removesuffix(".lua") for name in found if name.endswith(".lua"))

    @classmethod
    def source(cls, name: str) -> str:
        """Return the text of a script with its included files, as it runs in Redis."""
        return with_included(script_text(cls.package, name), cls.package)


class Scripts(Protocol):
    """Set of scripts that work on one kind of state, in Redis or in memory."""

    @property
    def by_name(self) -> Mapping[str, Callable[[Sequence[str], Mapping[str, Any]], Awaitable[Any]]]:
        """Functions by the names of their scripts; a function takes keys and arguments, and returns the reply of the script."""
