"""The operating system's calls that the supervisor makes, each with its answer for a platform that lacks it.

The hostile side has its own module (worker/sandbox/linux.py); nobody else calls the system by number.
"""

import contextlib
import ctypes
import os
import resource
import sys

LINUX = sys.platform.startswith("linux")

_PR_SET_DUMPABLE = 4
_OPEN_FILES = (65_536, 10_240)  # three for each worker, and the rest; macOS takes no more than the second


def harden() -> None:
    """Nobody of the same user may trace this process or read its memory, and many workers may be open at once."""
    not_dumpable()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in _OPEN_FILES:
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)  # a hard limit below it is the operator's wish
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
            break
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def not_dumpable() -> bool:
    """No core dump, no ptrace, no /proc/<pid>/mem for others. False where the platform has no such thing."""
    if not LINUX:
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)


def start_time(pid: int) -> str:
    """When a process began, in the kernel's own words; "" when it cannot be told. For people, and to tell two apart."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[19].decode()
    except (OSError, IndexError):
        return ""


def free_bytes(path: str) -> int:
    """What an ordinary user may still write on the disk that holds path."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
