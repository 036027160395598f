"""A broker and a Valkey from pip wheels: for the demo, the tests and first steps, never for production.

Both servers store their data in memory (Valkey optionally in a file) and listen on the loopback address only.
They are child processes, and end with the process that has started them, however it ends. The worker does not import this package.
"""

from streams_app.embedded.broker import Broker
from streams_app.embedded.child import EmbeddedServerError
from streams_app.embedded.valkey import Valkey

__all__ = ["Broker", "EmbeddedServerError", "Valkey"]
