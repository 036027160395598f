"""Patch of aiokafka's requests for committed offsets: an error about the whole group is raised.

Since version 2 of OffsetFetch, a coordinator that is moving, or has not loaded its log yet, answers with an error and an empty
list. aiokafka (0.14, ``consumer/group_coordinator.py``) reads only the list, so that the group seems to have no commits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest


def _raising(send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(send)
    async def sent(self: GroupCoordinator, request: Any) -> Any:
        response = await send(self, request)
        code = getattr(response, "error_code", 0) if isinstance(request, OffsetFetchRequest) else 0
        if code:
            error = for_code(code)
            if error in (GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError):
                self.coordinator_dead()
            raise error(self.group_id)
        return response

    return sent


def raise_group_errors() -> None:
    """Patch the coordinators of this process to raise the error in a reply to OffsetFetch. Further calls have no effect."""
    send = GroupCoordinator._send_req
    if not hasattr(send, "__wrapped__"):
        GroupCoordinator._send_req = _raising(send)
