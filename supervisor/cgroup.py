"""A cgroup v2 tree of our own for the workers, where the service manager has delegated one (`Delegate=` of a unit).

A group that has processes may not hand controllers on to groups below it, so the bridge moves itself into a leaf first.
It does that only where the group is its own: a login session's group holds other people's processes too. Without one,
nothing is done, and what is then held by watching is called so (isolation.limit_kinds).
"""

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = frozenset({"cpu", "memory", "pids"})
LEAF = "bridge"
WORKER = "worker-"  # how nannies name theirs


def own_group(proc_cgroup: str) -> str | None:
    """The v2 group in the text of /proc/self/cgroup; None where there is none, or it is the root."""
    for line in proc_cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers and path not in ("", "/") and ".." not in path.split("/"):
            return path
    return None


def missing_controllers(text: str) -> frozenset[str]:
    """Of those that we need, in the text of a group's cgroup.controllers."""
    return CONTROLLERS - frozenset(text.split())


def prepare(ours: Iterable[int], *, root: Path = ROOT, proc_cgroup: Path = Path("/proc/self/cgroup")) -> Path | None:
    """The folder below which nannies make their groups; None where there is none to be had.

    ours  processes that may be moved: the supervisor, its zygote
    """
    try:
        path = own_group(proc_cgroup.read_text(encoding="utf-8"))
        if path is None:
            return None
        group = root / path.lstrip("/")
        if missing_controllers((group / "cgroup.controllers").read_text(encoding="ascii")):
            return None
        inside = {int(pid) for pid in (group / "cgroup.procs").read_text(encoding="ascii").split()}
        if not inside or not inside <= set(ours) or not os.access(group / "cgroup.subtree_control", os.W_OK):
            return None
        leaf = group / LEAF
        leaf.mkdir(exist_ok=True)
        for pid in inside:
            (leaf / "cgroup.procs").write_text(str(pid), encoding="ascii")
        (group / "cgroup.subtree_control").write_text(
            " ".join(f"+{name}" for name in sorted(CONTROLLERS)), encoding="ascii"
        )
    except (OSError, ValueError) as error:
        log.debug("cgroup_absent reason=%s", error)
        return None
    for left in group.glob(f"{WORKER}*"):  # of nannies that were killed
        with contextlib.suppress(OSError):
            left.rmdir()
    return group
