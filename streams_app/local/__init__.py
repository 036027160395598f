"""Events and subscribers without servers: log, consumer groups and stored state are in the memory of one process.

`broker` is the log with its consumer groups, `scripts` replaces Redis, and `member` is the consumer of a group. `process` calls
subscribers with the code that a worker uses for retries, order and dead letters. `events` is :class:`LocalEvents`, for
development; the test kit :mod:`streams_app.testing` uses the other modules.
"""

from streams_app.local.events import LocalEvents

__all__ = ["LocalEvents"]
