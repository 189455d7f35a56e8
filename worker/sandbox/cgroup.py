"""cgroup: one group for one worker's tree, where the service manager has delegated us a cgroup v2 tree.

The nanny makes the group and stays outside; its stem joins before it forks the worker, so that nothing of the tree was
ever elsewhere. The kernel then holds memory, processes and the share of the processor for the whole tree.
"""

import contextlib
import os
from dataclasses import dataclass

from protocol.spec import Layer, WorkerPlan

CPU_WEIGHT = 20  # of 100, what everybody has: under load the bridge comes first
NANNY_TASKS = 8  # the same slack that a user namespace's own count has


@dataclass(frozen=True, slots=True)
class Group:
    """folder: its own. Whoever made it removes it."""

    folder: str

    def join(self) -> None:
        """Move the caller into it, for good and with all that it forks from now on. raises OSError"""
        self._write("cgroup.procs", "0")

    def ran_out_of_memory(self) -> bool:
        """Has the kernel killed something in it for that?"""
        with contextlib.suppress(OSError), open(f"{self.folder}/memory.events", encoding="ascii") as file:
            return any(int(line.split()[1]) > 0 for line in file if line.startswith("oom_kill "))
        return False

    def remove(self) -> None:
        """Once its last process is gone."""
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)

    def _write(self, name: str, text: str) -> None:
        with open(f"{self.folder}/{name}", "w", encoding="ascii") as file:
            file.write(text)


def make(plan: WorkerPlan, name: str) -> Group | None:
    """None where the plan wants none, or it cannot be had; nothing of it is left then."""
    if Layer.CGROUP not in plan.wanted or not plan.cgroup:
        return None
    group = Group(f"{plan.cgroup}/{name}")
    try:
        os.mkdir(group.folder, 0o755)
        for limit, value in limits_of(plan).items():
            group._write(limit, value)
    except OSError:
        group.remove()
        return None
    return group


def limits_of(plan: WorkerPlan) -> dict[str, str]:
    """The group's files and what is written into them."""
    return {
        "memory.max": str(plan.limits.memory_bytes),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": str(plan.limits.processes + NANNY_TASKS),
        "cpu.weight": str(CPU_WEIGHT),
    }
