"""Events and subscribers without servers: the log, the groups and what Redis keeps are in the memory of one process.

`broker` is the log and its consumer groups, `scripts` stands in the place of Redis, `member` is the host of a group, `process` what
of a worker calls subscribers: windows, notes, retries, order and letters are the code that a worker runs. `events` is
:class:`LocalEvents`, for development; the test kit :mod:`streams_app.testing` stands on the rest.
"""

from streams_app.local.events import LocalEvents

__all__ = ["LocalEvents"]
