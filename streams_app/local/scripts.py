"""The state of subscribers in memory: for each Redis script, a function that returns the same reply.

``tests/integration/subscribers/state/test_scripts.py`` compares the functions with the scripts on a real server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import ceil
from typing import Any

from streams_app.delivery.scripts import FencedError
from streams_app.subscribers.state.store import SubscriberScripts
from streams_app.subscribers.state.token_bucket import TokenBucket, leased

Hash = dict[str, str]


class MemoryScripts:
    """Replaces :class:`streams_app.subscribers.state.store.SubscriberScripts`, for the subscribers of one or more processes.

    Attributes:
        by_name: For each name of a script, a function that is called with the keys and the arguments of the script.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Create the replacement of an empty Redis; ``now_ms`` is the time for the expiry of event ids and for rate limits."""
        self._now_ms = now_ms
        self._hashes: dict[str, Hash] = {}
        self._expire_ms: dict[str, int] = {}
        self.by_name: Mapping[str, Callable[[Sequence[str], Mapping[str, Any]], Awaitable[Any]]] = {
            name: self._script(name) for name in SubscriberScripts.names()
        }

    def wipe(self) -> None:
        self._hashes.clear()
        self._expire_ms.clear()

    def lose(self, key: str) -> None:
        self._hashes.pop(key, None)
        self._expire_ms.pop(key, None)

    def _script(self, name: str) -> Callable[[Sequence[str], Mapping[str, Any]], Awaitable[Any]]:
        run: Callable[[Sequence[str], Mapping[str, Any]], list[bytes]] = getattr(self, f"_{name}")

        async def called(keys: Sequence[str], arguments: Mapping[str, Any]) -> list[bytes]:
            for key in [key for key, at_ms in self._expire_ms.items() if at_ms <= self._now_ms()]:
                del self._expire_ms[key]
                self._hashes.pop(key, None)
            return run(keys, arguments)

        return called

    def _progress(self, keys: Sequence[str], arg: Mapping[str, Any]) -> list[bytes]:
        meta = self._hash(keys[0])
        return _bytes("ok", meta["fence"], meta.get("note", "")) if "fence" in meta and "number" in meta else [b"none"]

    def _claim(self, keys: Sequence[str], arg: Mapping[str, Any]) -> list[bytes]:
        meta = self._hash(keys[0])
        if arg["retried"] and meta.get("token", arg["token"]) != arg["token"]:
            raise FencedError("subscriber-claim", "token")
        if not ("fence" in meta and "number" in meta):
            if not arg["begin"]:
                return [b"none"]
            self._hashes.pop(keys[1], None)
            meta |= {"fence": arg["begin"], "number": "0", "note": ""}
        meta |= {"token": arg["token"], "note": meta.get("note", ""), "told": "0"}
        self._hashes[keys[0]] = meta
        entries = self._hash(keys[1])
        return _bytes("ok", meta["fence"], meta["number"], meta["note"], *(text for entry in entries.items() for text in entry))

    def _begin(self, keys: Sequence[str], arg: Mapping[str, Any]) -> list[bytes]:
        meta = self._owned("subscriber-begin", keys, arg)
        events = arg["events"]
        after = str(int(arg["number"]) + len(events) // 3)
        if meta["number"] not in (arg["number"], after):
            raise FencedError("subscriber-begin", "number")
        reply = ["ok", after]
        for index, (offset, entry, event_id) in enumerate(zip(events[::3], events[1::3], events[2::3], strict=True)):
            first = self._first(keys[2:], event_id, offset) if event_id else offset
            if first == offset:
                self._hashes.setdefault(keys[1], {})[offset] = entry
            else:
                reply += [str(index), first]
        if len(keys) > 2 and keys[2] in self._hashes:  # noqa: PLR2004  # the keys of ids follow the two of the state
            self._expire_ms[keys[2]] = self._now_ms() + arg["expire_ms"]
        meta["number"] = after
        return _bytes(*reply)

    def _end(self, keys: Sequence[str], arg: Mapping[str, Any]) -> list[bytes]:
        meta = self._owned("subscriber-end", keys, arg)
        if meta["number"] != arg["number"]:
            raise FencedError("subscriber-end", "number")
        if arg["told"] <= int(meta.get("told", 0)):
            return _bytes("ok")
        entries = self._hashes.setdefault(keys[1], {})
        for offset in arg["finished"]:
            entries.pop(offset, None)
        entries |= dict(zip(arg["waiting"][::2], arg["waiting"][1::2], strict=True))
        meta |= {"fence": arg["low"], "note": arg["note"], "told": str(arg["told"])}
        return _bytes("ok")

    def _learn(self, keys: Sequence[str], arg: Mapping[str, Any]) -> list[bytes]:
        meta = self._owned("subscriber-learn", keys, arg)
        after = str(int(arg["number"]) + 1)
        if meta["number"] not in (arg["number"], after):
            raise FencedError("subscriber-learn", "number")
        for offset, event_id in zip(arg["events"][::2], arg["events"][1::2], strict=True):
            self._first(keys[2:], event_id, offset)
        if keys[2] in self._hashes:
            self._expire_ms[keys[2]] = self._now_ms() + arg["expire_ms"]
        meta["number"] = after
        return _bytes("ok", after)

    def _lease(self, keys: Sequence[str], arg: Mapping[str, Any]) -> list[bytes]:
        now_us = self._now_ms() * 1_000
        entries = self._hashes.setdefault(keys[0], {})
        gone_us = now_us - arg["gone_ms"] * 1_000
        for token in [name for name, at_us in entries.items() if name != "empty" and int(at_us) < gone_us]:
            del entries[token]
        empty_us = float(entries["empty"]) if "empty" in entries else None
        got = leased(TokenBucket(arg["every_us"], arg["full_us"]), empty_us, arg["wanted"], now_us)
        entries |= {"empty": f"{got.empty_us:.0f}", arg["token"]: str(now_us)}
        self._expire_ms[keys[0]] = self._now_ms() + max(ceil(arg["full_us"] / 1_000), arg["gone_ms"])
        return _bytes("ok", str(got.granted), str(got.wait_us), str(len(entries) - 1))

    def _first(self, keys: Sequence[str], event_id: str, offset: str) -> str:
        """Return the offset at which an event id was first seen; if the id is new, store and return ``offset``.

        Args:
            keys: Keys of the hashes that may have the id; a new id is stored in the first one.
        """
        known = next((found for key in keys if (found := self._hash(key).get(event_id)) is not None), None)
        if known is None:
            self._hashes.setdefault(keys[0], {})[event_id] = offset
        return known or offset

    def _owned(self, script: str, keys: Sequence[str], arg: Mapping[str, Any]) -> Hash:
        meta = self._hash(keys[0])
        if "fence" not in meta:
            raise FencedError(script, "no-state")
        if meta.get("token") != arg["token"]:
            raise FencedError(script, "token")
        return meta

    def _hash(self, key: str) -> Hash:
        return self._hashes.get(key, {})


def _bytes(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]
