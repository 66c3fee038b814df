"""Run by path, as `launch.py PARENT UID GID COMMAND…`: become the command, as that user, and die with the parent.

A program of its own rather than a `preexec_fn`, because Python code between fork and exec may hang when the parent has
threads, as a Spark driver does. The death signal is set after the change of user, which would clear it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, uid: int, gid: int, command: list[str]) -> None:
    if os.geteuid() != uid:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent is already gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
