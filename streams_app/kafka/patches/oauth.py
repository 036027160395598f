"""Patch of aiokafka's SASL/OAUTHBEARER: if the broker rejects a token, the connection fails with the broker's error.

A broker that rejects a token answers with a challenge that names the reason, and waits for the client to end the exchange (RFC
7628, section 3.2.3). aiokafka 0.14 (``conn.py``, ``OAuthAuthenticator``) ignores the challenge and logs that it is authenticated.
Its next request fails without a reason.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from aiokafka.conn import OAuthAuthenticator

END_OF_EXCHANGE = b"\x01"


def answer_rejections() -> None:
    """Patch aiokafka in this process to answer the challenge, and to discard the token. Further calls have no effect."""
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
