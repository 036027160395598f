"""Run as a script: gives up the rights of root, then becomes the command. PostgreSQL does not run as root.

The kernel drops the tie of a process to its parent (`streams_app/embedded/guard.py`) when the user changes, so it is requested a
second time. Usage: ``as_nobody.py GUARD COMMAND...``
"""

from __future__ import annotations

import ctypes  # noqa: F401 - while it may still be read: Python may be in a folder of root's
import os
import pwd
import runpy
import sys


def main(arguments: list[str]) -> None:
    guard, *command = arguments
    die_with_parent = runpy.run_path(guard)["die_with_parent"]
    nobody, parent = pwd.getpwnam("nobody"), os.getppid()
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)
    if sys.platform == "linux":
        die_with_parent(parent)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
