"""A broker and a Valkey from pip wheels: for the demo, the tests and a first look, never for production.

Both keep what they hold in memory (Valkey can be told to keep a file) and listen on the loopback address only.
They are children of this process and end with it, however it ends. Nothing here is imported by the worker.
"""

from streams_app.embedded.broker import Broker
from streams_app.embedded.child import EmbeddedServerError
from streams_app.embedded.valkey import Valkey

__all__ = ["Broker", "EmbeddedServerError", "Valkey"]
