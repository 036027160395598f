"""aiokafka's question for the commits of a group: an answer that is an error about the whole group is one.

Since version 2 of that request a coordinator that is about to move, or has not read its log yet, answers with an error beside an
empty list. aiokafka (0.14, ``consumer/group_coordinator.py``) looks at the list alone: the group seems to have committed nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest


def _heeding(send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
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


def heed_group_errors() -> None:
    """From now on nobody in this process takes such an answer for a group without commits; may be called again."""
    send = GroupCoordinator._send_req
    if not hasattr(send, "__wrapped__"):
        GroupCoordinator._send_req = _heeding(send)
