"""aiokafka's SASL/OAUTHBEARER: a token that the broker rejects is an error of the connection.

A broker answers a token that it rejects with a challenge that names the reason, and waits for the client to end the exchange
(RFC 7628, section 3.2.3). aiokafka 0.14 ignores the challenge, logs that it is authenticated, and its next request fails for no
stated reason (``conn.py``, ``OAuthAuthenticator``).
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from aiokafka.conn import OAuthAuthenticator

END_OF_EXCHANGE = b"\x01"


def answer_rejections() -> None:
    """Patch the clients of this process: they end the exchange after a challenge; the broker then sends its error. Idempotent."""
    step = OAuthAuthenticator.step
    if hasattr(step, "__wrapped__"):
        return

    @wraps(step)
    async def answered(self: OAuthAuthenticator, payload: bytes | None) -> tuple[bytes, bool] | None:
        if self._token_sent and payload:
            provider: Any = self._sasl_oauth_token_provider
            provider.forget()
            return END_OF_EXCHANGE, True
        return await step(self, payload)

    OAuthAuthenticator.step = answered
