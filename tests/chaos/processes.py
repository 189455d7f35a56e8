"""The processes of one chaos home, found by what /proc says, since most are nobody's children that we know of.

Whatever is forked from a zygote or started as a gateway bears the home's board in its command line, and an agent program
bears it as an argument; so nothing of it can hide behind a new parent or session.
"""

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """started: clock ticks since boot; with the pid it names one process for good."""

    pid: int
    parent: int
    started: int

    def lives(self) -> bool:
        now = _stat(self.pid)
        return now is not None and now.started == self.started

    def kill(self) -> bool:
        """False: it was gone already."""
        if not self.lives():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            return True
        return False


@dataclass(frozen=True, slots=True)
class Family:
    """All that lives of a home, its supervisor aside. workers: (worker, its nanny)"""

    zygote: Process | None
    gateway: Process | None
    nannies: tuple[Process, ...]
    workers: tuple[tuple[Process, int], ...]
    everybody: tuple[Process, ...]

    def of(self, nanny_pid: int) -> Process | None:
        return next((worker for worker, parent in self.workers if parent == nanny_pid), None)


def family(mark: str, supervisor: int, besides: frozenset[int]) -> Family:
    """mark: what their command lines contain. besides: pids that bear it and are not of the family"""
    found: dict[int, Process] = {}
    words: dict[int, bytes] = {}
    needle = mark.encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in besides or int(name) == supervisor:
            continue
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if needle in line and (process := _stat(int(name))) is not None:
            found[process.pid], words[process.pid] = process, line
    forked = {pid for pid, line in words.items() if b"zygote_entry" in line}
    zygote = next((found[pid] for pid in forked if found[pid].parent == supervisor), None)
    gateway = next((found[pid] for pid, line in words.items() if b"gateway_entry" in line), None)
    others = forked - {zygote.pid if zygote is not None else 0}
    nannies = {pid for pid in others if found[pid].parent not in others}
    return Family(
        zygote,
        gateway,
        tuple(found[pid] for pid in sorted(nannies)),
        tuple((found[pid], found[pid].parent) for pid in sorted(others - nannies) if found[pid].parent in nannies),
        tuple(found.values()),
    )


def _stat(pid: int) -> Process | None:
    """None: gone, or a zombie, of which only the number is left."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else Process(pid, int(fields[1]), int(fields[19]))


def process(pid: int) -> Process | None:
    return _stat(pid)


def waited_s(pid: int) -> float:
    """How long its main thread was ready to run while others ran."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def ended(pid: int, within_s: float) -> bool:
    """Wait for the end of a process that need not be our child."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], within_s)[0])
    finally:
        os.close(pidfd)


def all_gone(processes: tuple[Process, ...], within_s: float) -> tuple[list[Process], float]:
    """Who is left after so long, and how long it took."""
    began = time.monotonic()
    left = list(processes)
    while left := [one for one in left if one.lives()]:
        if time.monotonic() - began > within_s:
            break
        time.sleep(0.002)  # they are not our children: nothing tells of their end
    return left, time.monotonic() - began
