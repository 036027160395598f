"""Script that ties a server to its parent process, then becomes the server.

A server started by ``subprocess`` alone survives a parent that is killed: after SIGKILL, neither ``finally`` nor
``atexit`` runs. There are two ways to prevent this:

* ``signal`` (Linux): the kernel sends SIGKILL when the parent dies (``PR_SET_PDEATHSIG``), also after ``exec``.
  The kernel's "parent" is the *thread* that forked, which is why `child.py` forks from a thread that never ends.
* ``pipe`` (macOS and others): a small watcher process blocks on a pipe whose other end only the parent has; at the
  end of file it kills the server.

In both cases this process becomes the server by ``exec``, so the parent knows the server's own process id. The script imports only
the standard library and nothing of this package, and runs with ``-I -S``, so that it starts in milliseconds.

Usage: ``guard.py signal PARENT_PID COMMAND...`` or ``guard.py pipe READ_FD COMMAND...``
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Request that the kernel sends SIGKILL to this process when the parent dies; exit at once if the parent is already dead."""
    # Imported here, because only this way needs it, and it is the slowest import of the script.
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # Check after the prctl: if the check came first, the death of the parent between the two calls would not be noticed.
    if os.getppid() != parent_pid:
        os._exit(1)


def watch_pipe(read_fd: int) -> None:
    """Fork a watcher process that kills this process when the other end of the pipe is closed."""
    server_pid = os.getpid()
    if os.fork() != 0:
        os.close(read_fd)
        return
    # A separate session: a signal to the server's process group must not end its watcher first.
    os.setsid()
    while os.read(read_fd, 1):
        pass
    # If the parent of the watcher has changed, the server has ended, and its process id may belong to another process.
    if os.getppid() == server_pid:
        os.kill(server_pid, signal.SIGKILL)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Tie this process to its parent, then replace it with the server by ``exec``."""
    way, number, command = arguments[0], int(arguments[1]), arguments[2:]
    if way == "signal":
        die_with_parent(number)
    else:
        watch_pipe(number)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
