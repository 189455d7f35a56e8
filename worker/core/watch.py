"""When a worker's tree has gone too far: memory, processes, sessions, and what a turn leaves running.

In comes what /proc says of each process at one look; out go effects for watch.py to perform. An Overrun ends the whole
tree. The kernel holds some of these by itself where a user namespace, a uid or a cgroup of the tree's own makes it
count; then it refuses earlier, and nothing here comes true.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.to_supervisor import Limit

MIB = 1024 * 1024
SESSIONS = 16  # each has a share of the processor of its own (autogroup), whatever its niceness
SLACK_TASKS = 8  # as many as a user namespace's own count allows on top: the nanny and ZeroMQ's threads

MOVING_S, STILL_S, IDLE_S = 0.1, 0.5, 1.0  # between two looks: it uses the processor; a turn runs; neither
MOVING_SHARE = 0.01  # of a core
LOOK_SHARE = 0.02  # looking may take so much of a core; a crowd is looked at less often

LEFT_SHARE = 0.1  # of a core, for
LEFT_S = 60.0  # with no turn running, is too much for what a turn has left behind


@dataclass(frozen=True, slots=True)
class Seen:
    """One process at one look.

    started  tells it from an earlier process with the same pid
    bytes    memory that is its own or shared by few; what a fork shares with its parent is counted in both
    cpu_s    used in all its life, with that of its children it has waited for
    """

    pid: int
    started: int
    session: int
    tasks: int
    bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Bounds:
    memory_bytes: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Overrun:
    """Kill the tree. detail: one line for the log."""

    limit: Limit
    detail: str


@dataclass(frozen=True, slots=True)
class Weigh:
    """These together look like too much. Ask the kernel for what they really take, and tell weighed()."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Demote:
    """Give this process's session the smallest share of the processor, and tell demoted()."""

    pid: int
    session: int


@dataclass(frozen=True, slots=True)
class Reap:
    """Kill this one process, which a turn has left behind."""

    pid: int


WatchEffect = Overrun | Weigh | Demote | Reap


class Watch:
    """Knows no clock and no process. worker: the pid that the tree began with. `now` is monotonic seconds."""

    def __init__(self, worker: int, bounds: Bounds, *, now: float) -> None:
        self._worker = worker
        self._bounds = bounds
        self._busy = False
        self._looked_at = now
        self._next_at = now
        self._moved = True
        self._cpu: dict[tuple[int, int], float] = {}  # at the last look
        self._left: dict[tuple[int, int], tuple[float, float]] = {}  # since when, and cpu_s then
        self._demoted: set[int] = set()

    def turn_began(self, *, now: float) -> None:
        self._busy = True
        self._left.clear()
        self._next_at = min(self._next_at, now + MOVING_S)

    def turn_ended(self, *, now: float) -> None:
        self._busy = False
        self._left.clear()

    def wake_at(self) -> float:
        """When to look again."""
        return self._next_at

    def looked(self, seen: Sequence[Seen], *, took_s: float, now: float) -> tuple[WatchEffect, ...]:
        self._measure(seen, now)
        base = MOVING_S if self._moved else STILL_S if self._busy else IDLE_S
        self._next_at = now + max(base, took_s / LOOK_SHARE)
        if (overrun := self._counted(seen)) is not None:
            return (overrun,)
        return (*self._left_behind(seen, now), *self._demotions(seen), *self._weighing(seen))

    def weighed(self, total_bytes: int) -> Overrun | None:
        if total_bytes <= self._bounds.memory_bytes:
            return None
        return Overrun(Limit.MEMORY, f"{total_bytes // MIB} MiB of {self._bounds.memory_bytes // MIB}")

    def demoted(self, session: int) -> None:
        self._demoted.add(session)

    def _measure(self, seen: Sequence[Seen], now: float) -> None:
        """Has the tree used the processor since the last look?"""
        before, self._cpu = self._cpu, {(one.pid, one.started): one.cpu_s for one in seen}
        used_s = sum(cpu_s - before.get(key, 0.0) for key, cpu_s in self._cpu.items())
        self._moved = used_s > MOVING_SHARE * max(0.0, now - self._looked_at)
        self._looked_at = now

    def _counted(self, seen: Sequence[Seen]) -> Overrun | None:
        tasks = sum(one.tasks for one in seen)
        if tasks > self._bounds.tasks + SLACK_TASKS:
            return Overrun(Limit.PROCESSES, f"{tasks} of {self._bounds.tasks}")
        sessions = len({one.session for one in seen})
        if sessions > SESSIONS:
            return Overrun(Limit.PROCESSES, f"{sessions} sessions of {SESSIONS}")
        return None

    def _left_behind(self, seen: Sequence[Seen], now: float) -> list[WatchEffect]:
        """Judged over whole stretches of LEFT_S, so that a short burst is none."""
        if self._busy:
            return []
        effects: list[WatchEffect] = []
        before, self._left = self._left, {}
        for one in seen:
            key = (one.pid, one.started)
            since, cpu_s = before.get(key, (now, one.cpu_s))
            if now - since >= LEFT_S:
                share = (one.cpu_s - cpu_s) / (now - since)
                since, cpu_s = now, one.cpu_s
                if share > LEFT_SHARE and one.pid == self._worker:
                    effects.append(Overrun(Limit.CPU, f"{share:.0%} of a core without a turn"))
                elif share > LEFT_SHARE:
                    effects.append(Reap(one.pid))
            self._left[key] = (since, cpu_s)
        return effects

    def _demotions(self, seen: Sequence[Seen]) -> list[WatchEffect]:
        """Every session but the worker's own, which was there from the start."""
        own = {one.session for one in seen if one.pid == self._worker}
        sessions = {one.session: one.pid for one in seen if one.session not in own}
        self._demoted &= sessions.keys()
        return [Demote(pid, session) for session, pid in sessions.items() if session not in self._demoted]

    def _weighing(self, seen: Sequence[Seen]) -> list[WatchEffect]:
        if sum(one.bytes for one in seen) <= self._bounds.memory_bytes:
            return []
        return [Weigh(tuple(one.pid for one in seen))]
