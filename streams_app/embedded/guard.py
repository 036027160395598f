"""Run as a script: turns itself into a server that cannot outlive the process that wanted it.

A server started by ``subprocess`` alone survives a parent that is killed: no ``finally`` and no ``atexit`` run under
SIGKILL. Two ways to tie it down:

* ``signal`` (Linux): the kernel sends SIGKILL when the parent is gone (``PR_SET_PDEATHSIG``), also across ``exec``.
  The kernel's "parent" is the *thread* that forked, which is why `child.py` forks from a thread that never ends.
* ``pipe`` (macOS and others): a small watcher process blocks on a pipe whose other end only the parent holds; at the
  end of file it kills the server.

Either way this process becomes the server by ``exec``, so the pid its parent knows is the server's own. Only the
standard library and nothing of this package is imported: it runs with ``-I -S`` to start in milliseconds.

Usage: ``guard.py signal PARENT_PID COMMAND...`` or ``guard.py pipe READ_FD COMMAND...``
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel for SIGKILL at the parent's death; ends at once when the parent is dead already."""
    # Imported here: only this way needs it, and it is the slowest import of the script.
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # After the prctl, never before: a parent that died in between would not be noticed by either.
    if os.getppid() != parent_pid:
        os._exit(1)


def watch_pipe(read_fd: int) -> None:
    """Forks a watcher that kills this process when the other end of the pipe is closed."""
    server_pid = os.getpid()
    if os.fork() != 0:
        os.close(read_fd)
        return
    # A session of its own: a signal to the server's group must not end its watcher first.
    os.setsid()
    while os.read(read_fd, 1):
        pass
    # A watcher that was adopted by somebody else has outlived the server, whose pid may belong to a stranger by now.
    if os.getppid() == server_pid:
        os.kill(server_pid, signal.SIGKILL)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Ties this process to its parent, then becomes the command."""
    way, number, command = arguments[0], int(arguments[1]), arguments[2:]
    if way == "signal":
        die_with_parent(number)
    else:
        watch_pipe(number)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
