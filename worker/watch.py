"""Performs core/watch for a nanny: reads its tree in /proc, demotes sessions, reaps what was left behind.

One look at an idle worker takes about 0.1 ms, once a second. Where /proc tells nothing (macOS) nothing is watched.
"""

import contextlib
import os
import signal
import time

from protocol.spec import WorkerLimits
from worker.core.watch import Bounds, Demote, Overrun, Reap, Seen, Watch, Weigh
from worker.sandbox import linux


class TreeWatch:
    """worker: its pid as the nanny sees it."""

    def __init__(self, worker: int, limits: WorkerLimits) -> None:
        self._core = Watch(worker, Bounds(limits.memory_bytes, limits.processes), now=time.monotonic())

    def turn_began(self) -> None:
        self._core.turn_began(now=time.monotonic())

    def turn_ended(self) -> None:
        self._core.turn_ended(now=time.monotonic())

    def wait_s(self) -> float:
        return max(0.0, self._core.wake_at() - time.monotonic())

    def look(self) -> Overrun | None:
        """What the whole tree has to be killed for."""
        began = time.monotonic()
        seen = [found for pid in linux.descendants(os.getpid()) if (found := _seen(pid)) is not None]
        now = time.monotonic()
        for effect in self._core.looked(seen, took_s=now - began, now=now):
            match effect:
                case Overrun():
                    return effect
                case Weigh(pids=pids):
                    overrun = self._core.weighed(sum(map(linux.weight_bytes, pids)))
                    if overrun is not None:
                        return overrun
                case Demote(pid=pid, session=session):
                    # EAGAIN: the kernel takes one such write in 0.1 s from all users together; the next look tries again.
                    with contextlib.suppress(OSError):
                        linux.demote_session(pid)
                        self._core.demoted(session)
                case Reap(pid=pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        return None


def _seen(pid: int) -> Seen | None:
    found = linux.process(pid)
    if found is None:
        return None
    return Seen(pid, found.started, found.session, found.tasks, found.own_bytes, found.cpu_s)
