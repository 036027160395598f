"""The scripts of a shard as Redis gets them."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from redis.asyncio import Redis

from streams_app.delivery import scripts
from streams_app.delivery.scripts import Script, Timer, unmeasured

SCRIPTS: Final = ("claim", "define", "finish", "fold", "outbox", "rewind", "seal", "skip", "watermark")


def script_text(name: str) -> str:
    """A script as it is written."""
    return (files("streams_app.folding.store") / "lua" / f"{name}.lua").read_text("utf-8")


def with_included(text: str) -> str:
    """A script as it is run: with what it shares with others."""
    return scripts.with_included(text, lambda name: script_text(f"shared/{name}"))


class FoldScripts:
    """The scripts, loaded once a process."""

    def __init__(self, redis: Redis, timer: Timer = unmeasured) -> None:
        """Loads nothing yet.

        Args:
            redis: Client of the application's Redis.
            timer: Measures each call.
        """
        self.redis = redis
        self.by_name = {name: Script(name, redis.register_script(with_included(script_text(name))), timer) for name in SCRIPTS}
