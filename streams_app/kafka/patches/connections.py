"""Patch of aiokafka's connections on uvloop: a write to a lost connection raises ``KafkaConnectionError``.

After the loss of a connection, until aiokafka notices it, asyncio drops written data. uvloop raises ``RuntimeError`` instead, which
aiokafka does not expect (0.14, ``conn.py``): the task that sends requests or fetches metadata would end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError


def _closing(send: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(send)
    def sent(self: AIOKafkaConnection, *args: Any, **options: Any) -> Any:
        try:
            return send(self, *args, **options)
        except RuntimeError as error:
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"the connection to {self.host}:{self.port} is lost: {error}") from error

    return sent


def expect_losses() -> None:
    """Patch the connections of this process. Further calls have no effect."""
    for name in ("send", "_send_sasl_token"):
        send = getattr(AIOKafkaConnection, name)
        if not hasattr(send, "__wrapped__"):
            setattr(AIOKafkaConnection, name, _closing(send))
