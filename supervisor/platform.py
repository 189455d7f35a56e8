"""The operating system's calls that the supervisor makes, each with its answer for a platform that lacks it.

The hostile side has its own module (worker/sandbox/linux.py); nobody else calls the system by number.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys

import psutil  # type: ignore[import-untyped]  # it ships no types

LINUX = sys.platform.startswith("linux")

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
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


def die_with_parent() -> bool:
    """SIGKILL when the thread that started us ends; the caller checks afterwards that its process still lives. False
    where the platform has no such thing."""
    if not LINUX:
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)


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


def memory_bytes() -> int:
    """Of the whole machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def tree_of(pid: int) -> list[int]:
    """pid and all below it, as far as /proc shows them; pid alone where there is none."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{one}/task/{task}/children", encoding="ascii") as file:
                    found += [int(child) for child in file.read().split()]
    return found


def tree_wrote_bytes(pid: int) -> int | None:
    """What a tree has written to disks so far, that of children it has waited for included.

    None when a process below pid hides it: one that is not dumpable and of our own user. pid itself may be such a one.
    None also where the kernel does not count.
    """
    if not os.path.exists("/proc/self/io"):
        return None
    total = 0
    for one in tree_of(pid):
        try:
            total += _number_in(f"/proc/{one}/io", b"write_bytes:")
        except PermissionError:
            if one != pid:
                return None
        except OSError:
            continue  # it has ended
    return total


def tree_bytes(pid: int) -> int:
    """What a tree takes of memory, a shared page counted in parts. Of a process that hides that (not dumpable, and we are
    not root) all its anonymous pages count in full."""
    total = 0
    for one in tree_of(pid):
        with contextlib.suppress(OSError):
            try:
                total += _number_in(f"/proc/{one}/smaps_rollup", b"Pss:") * 1024
            except PermissionError:
                total += _number_in(f"/proc/{one}/status", b"RssAnon:") * 1024
    return total


def tree_rss_bytes(pid: int) -> int:
    """The resident memory of a tree, a shared page counted in full; 0 once it has ended. Cheap."""
    if not LINUX:
        total = 0
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            total = sum(one.memory_info().rss for one in (root, *root.children(recursive=True)))
        return total
    total = 0
    for one in tree_of(pid):
        with contextlib.suppress(OSError), open(f"/proc/{one}/statm", "rb") as file:
            total += int(file.read().split()[1]) * resource.getpagesize()
    return total


def _number_in(path: str, name: bytes) -> int:
    """0 when no line begins with name. raises OSError"""
    with open(path, "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(name)), 0)
