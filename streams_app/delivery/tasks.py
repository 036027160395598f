"""The tasks of a processor, which live as long as its claim."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from streams_app.delivery.processor import Claim
from streams_app.delivery.scripts import RefusedError

NO_WORDS: Final[Mapping[str, str]] = MappingProxyType({})


def run(claim: Claim, work: Coroutine[Any, Any, None], name: str, words: Mapping[str, str] = NO_WORDS) -> asyncio.Task[None]:
    """Runs a task: RefusedError ends it as :meth:`.Claim.refused`, any other error as :meth:`.Claim.fatal`.

    Args:
        claim: Of the processor, which cancels the task when it is revoked.
        work: What the task does.
        name: Of the task.
        words: Cause of a refusal → the same for people.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(partial(_ended, claim, words))
    return task


def _ended(claim: Claim, words: Mapping[str, str], task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, RefusedError):
        claim.refused(error.cause, words.get(error.cause, ""), error.script)
    elif error is not None:
        claim.fatal(error)
