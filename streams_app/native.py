"""The optional native core (``pip install 'streams_app[native]'``): reading, aggregating and rendering without an object for each.

The code in Python is the reference and the fallback: the native core returns the same results, and leaves whatever is unusual to
Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any, Final, Literal, Protocol, TypeGuard, cast

from streams_app.errors import ConfigurationError

_HEADERS = attrgetter("headers")

MODULE: Final = "streams_app_native"

NativeChoice = Literal["auto", "off", "require"]
"""Value of ``worker.native``: ``auto`` uses the native core if it is installed."""

VERSION: Final = "0.5.0"
"""The version of the native core that this version of the package works with; another one is not used."""

MASK_BYTES: Final = 128
"""Size of a set of changed names that the native core stores: one bit for each name that has one in Python."""

INSTALL: Final = "pip install 'streams_app[native]'"


class ColumnReader(Protocol):
    """Reads the events of one fold that keeps names."""

    def learn(self, name: str, bit: int, /) -> bool: ...


class ColumnGroups(Protocol):
    """The groups of a chunk. It iterates over their keys in the order of their bytes."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def runs(self, group: bytes, /) -> list[tuple[Any, ...]]:
        """Return the fields of each :class:`.GroupRun` of a group."""


class ColumnPacker(Protocol):
    """Packs groups for ``fold.lua``, as :class:`.GroupPacker` does."""

    def pack(
        self, groups: ColumnGroups, first: bytes, most: int, clock_ms: int, silent_from_ms: int, may_pack: bool,
        names_of: Callable[[int], tuple[Any, bytes, bytes]], /,
    ) -> tuple[int, bytes, list[tuple[Any, ...]], tuple[bytes, int, bytes, bytes]]:  # fmt: skip
        """Pack groups from ``first`` on.

        Returns:
            Their number, a msgpack array, the fields of each session's sealed group, and those of :class:`.PackedSessions`.
        """


class EventColumns(Protocol):
    """The events of a range. It iterates over plain tuples as readers in Python do."""

    misrouted: int
    misrouted_example: int | None

    def advance(self, reader: ColumnReader, /) -> int | None:
        """Read events up to the next one that Python must read; return its index, or None if all are read."""

    def put(self, offset: int, timestamp_ms: int, group: bytes, names: bytes, /) -> None:
        """Add an event that Python has read."""

    def next_chunk(self, end: int, limits: Any, /) -> tuple[int, int, int, ColumnGroups, list[int], list[bytes]]:
        """Aggregate the next events; return ``(to, clock_ms, events, groups, pauses, paused)``, see :class:`.Chunk`."""

    def __iter__(self) -> Iterator[tuple[int, int, bytes, int]]: ...


class ColumnRecords(Protocol):
    """The folded records of sealed groups of one shard."""

    def __len__(self) -> int: ...

    def advance(self, groups: list[Any], first: int, /) -> int | None:
        """Render groups from ``first`` on up to the next one that Python must render; return its index, or None."""

    def put(self, owner: int, fold_id: bytes, key: bytes, value: bytes, /) -> bool:
        """Add a record that Python has rendered for the group ``owner``; return whether there was room for it."""

    def record(self, index: int, /) -> tuple[bytes, bytes, bytes]:
        """Return fold id, key and value of a record."""

    def owners(self) -> list[int]:
        """Return, for each record, the index of its group."""

    def batches(
        self, partitions: int, batch_bytes: int, timestamp_ms: int, positions: list[int] | None, /
    ) -> list[tuple[int, bytearray, list[int]]]:
        """Pack the records with these indexes, or all, into batches.

        Returns:
            For each batch its partition, the batch without checksum, and the indexes of its records.
        """


NATIVE_ERROR: Final = RuntimeError
"""Type of the error that the native core raises if it has a fault; Python then does the work instead."""


class NativeCore(Protocol):
    """The module ``streams_app_native``."""

    VERSION: str
    Records: Any
    Reader: Callable[[str, str, int, int, int], ColumnReader]
    EventColumns: Callable[[Any], EventColumns]
    Packer: Callable[..., ColumnPacker]
    FoldedRecords: Callable[[tuple[str, str, str, str, str, str], int, int], ColumnRecords]


def native_core(choice: NativeChoice) -> NativeCore | None:
    """Return the native core if it is to be used.

    Raises:
        ConfigurationError: It is required, but it is not installed, or has another version.
    """
    if choice == "off":
        return None
    fault = native_fault()
    if fault is None:
        return loaded()
    if choice == "require":
        raise ConfigurationError([f'worker.native is "require", but {fault}: run `{INSTALL}`, or set it to "auto"'])
    return None


def native_fault() -> str | None:
    """Return why the native core cannot be used; None if it can."""
    try:
        found = loaded().VERSION
    except ImportError as error:
        return f"the native core cannot be imported ({error})"
    return None if found == VERSION else f"the native core has version {found}, this version of streams_app needs {VERSION}"


def loaded() -> NativeCore:
    """Return the module, which must be installed."""
    return cast(NativeCore, import_module(MODULE))


def is_columnar(records: Sequence[Any]) -> bool:
    """Return whether records are columns of the native core, so that it can read their events."""
    return type(records).__module__ == MODULE


def is_native(events: Iterable[Any]) -> TypeGuard[EventColumns]:
    """Return whether events were read by the native core."""
    return type(events).__module__ == MODULE


def have_headers(records: Sequence[Any]) -> bool:
    """Return whether any of the records has a header."""
    return bool(cast(Any, records).has_headers) if is_columnar(records) else any(map(_HEADERS, records))
