"""Events and subscribers without servers: log, consumer groups and stored state are in the memory of one process.

`broker` is the log with its consumer groups, `scripts` replaces Redis, `member` is the consumer of a group, and `process` is the
part of a worker that calls subscribers, with the same code for retries, order and dead letters as in a worker. `events` is
:class:`LocalEvents`, for development; the test kit :mod:`streams_app.testing` uses the other modules.
"""

from streams_app.local.events import LocalEvents

__all__ = ["LocalEvents"]
