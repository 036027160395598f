"""Options of all aiokafka clients of this project, from the ``[kafka]`` settings.

Passwords are read here and passed only to the client. They never appear in a log line, because clients do not log their options.
"""

from __future__ import annotations

import ssl
from typing import Any

from streams_app.errors import ConfigurationError
from streams_app.kafka.oauth import TokenProvider
from streams_app.kafka.patches import install
from streams_app.settings import KafkaSettings


def client_options(kafka: KafkaSettings) -> dict[str, Any]:
    """Return the connection options of consumers, producers and admin clients.

    Every client is created with these options, so this function also patches aiokafka (:mod:`streams_app.kafka.patches`).

    Raises:
        ConfigurationError: A certificate, key or password file cannot be read, the token provider cannot be imported, or the
            installed aiokafka or Faust cannot be patched.
    """
    install()
    options: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "security_protocol": kafka.security_protocol,
    }
    if kafka.security_protocol in ("SSL", "SASL_SSL"):
        options["ssl_context"] = ssl_context(kafka)
    if kafka.security_protocol.startswith("SASL_"):
        options["sasl_mechanism"] = kafka.sasl_mechanism
    if kafka.security_protocol.startswith("SASL_") and kafka.sasl_mechanism == "OAUTHBEARER":
        options["sasl_oauth_token_provider"] = TokenProvider(kafka)
    elif kafka.security_protocol.startswith("SASL_"):
        options["sasl_plain_username"] = kafka.sasl_username
        options["sasl_plain_password"] = kafka.sasl_password
    return options


def ssl_context(kafka: KafkaSettings) -> ssl.SSLContext:
    """Create a TLS context with certificate verification, and a client certificate if one is configured."""
    try:
        context = ssl.create_default_context(cafile=str(kafka.ssl_cafile) if kafka.ssl_cafile else None)
        if kafka.ssl_certfile:
            context.load_cert_chain(str(kafka.ssl_certfile), str(kafka.ssl_keyfile) if kafka.ssl_keyfile else None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError([f"kafka.ssl_*: cannot load the certificates: {error}"]) from error
    return context
