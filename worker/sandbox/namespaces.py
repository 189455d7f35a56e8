"""Namespaces: user and pid for nanny and worker, mounts (with IPC and host name) and network for the worker alone.

The nanny calls enter_nanny(), forks the worker (pid 1 of the new pid namespace), then leave_nanny(). It keeps its own
mount and network namespace: a worker that pivots inside the nanny's would move the nanny's root too. The worker calls
own_mounts() and own_network().

Under root with ids of the peer's own there is no user namespace: root may make the others as it is, and a user namespace
would only hand the worker's first instructions more than they need.
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from protocol.content import Access
from protocol.spec import Layer, NetworkMode, WorkerPlan
from worker.sandbox import linux
from worker.sandbox.plan import (
    TMP_BYTES,
    TMP_FILES,
    Facts,
    Right,
    Rule,
    binds,
    is_below,
    kept_from_hiding,
    takes_own_uid,
)

# Of a nanny whose worker has a uid of its own: to kill its tree, and to write to its sessions' files in /proc. A process
# of uid 0 may write to root's files in any case, so that the second one opens nothing that matters.
_KEPT = linux.CAP_KILL | linux.CAP_DAC_OVERRIDE


def enter_nanny(plan: WorkerPlan, facts: Facts) -> frozenset[Layer]:
    """User and pid namespace, as far as wanted and possible. Single-threaded callers only.

    Leaves the nanny dumpable and with capabilities: leave_nanny() after the fork.
    A kernel may allow unshare and refuse the maps (AppArmor), which would strand us without an id, so that a layer that
    the plan does not require is tried in a child first.
    raises  OSError when a layer fails that the plan requires
    """
    wanted = frozenset(plan.wanted) & {Layer.USER_NS, Layer.PID_NS}
    required = frozenset(plan.required) & wanted
    if takes_own_uid(plan, facts):
        wanted -= {Layer.USER_NS}
    elif Layer.USER_NS not in wanted and facts.euid != 0:
        wanted = frozenset()  # nobody but root makes a pid namespace outside a user namespace
    if not wanted:
        return wanted
    if not wanted <= required and not _possible(wanted):
        if required:
            raise OSError(errno.EPERM, "namespaces are refused here")
        return frozenset()
    _enter(wanted)
    return wanted


def leave_nanny(plan: WorkerPlan, facts: Facts) -> None:
    """After the fork: the nanny gives up its capabilities, but for _KEPT where the worker has another uid. raises OSError

    Where it may have to answer that worker's connects it also has to read which address they name.
    """
    keep = 0
    if takes_own_uid(plan, facts):
        keep = _KEPT
        if plan.network in (NetworkMode.GATEWAY, NetworkMode.PROXY) and Layer.NET_NS not in plan.required:
            keep |= linux.CAP_SYS_PTRACE & linux.permitted_capabilities()  # root in a container has none
    linux.drop_capabilities(keep=keep)
    linux.set_dumpable(0)


def _possible(wanted: frozenset[Layer]) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            _enter(wanted)
            linux.unshare(linux.CLONE_NEWNS)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _enter(wanted: frozenset[Layer]) -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = linux.CLONE_NEWPID if Layer.PID_NS in wanted else 0
    if Layer.USER_NS in wanted:
        flags |= linux.CLONE_NEWUSER
        linux.set_dumpable(1)  # else root owns /proc/self/uid_map
    linux.unshare(flags)
    if Layer.USER_NS in wanted:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(line)


def own_network(port: int) -> socket.socket | None:
    """An empty network namespace with its loopback up, and in it a listener in the gateway's place. raises OSError

    port      the gateway's, 0 = none
    returns   what the nanny has to serve; whoever connects meanwhile waits in its queue
    """
    linux.unshare(linux.CLONE_NEWNET)
    up_and_running, set_flags = 0x1 | 0x40, 0x8914  # IFF_UP | IFF_RUNNING, SIOCSIFFLAGS
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH22x", b"lo", up_and_running))
    if not port:
        return None
    # The protocol by its number, as the gateway's own listener has it: without it what we accept would gather bytes.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener


def own_mounts(plan: WorkerPlan, facts: Facts) -> None:
    """Mount, IPC and host name namespaces of the worker's own, and in them only the plan's files.

    raises OSError; the worker then still has the files it had
    """
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    before = os.umask(0o022)  # of mount points, which the peer's uid has to pass
    try:
        if plan.access is Access.FULL:
            _hide(plan, facts)
        else:
            _build_root(plan, facts)
    finally:
        os.umask(before)


def _hide(plan: WorkerPlan, facts: Facts) -> None:
    """The operator's whole disk, with an empty folder in place of each hidden one and what must stay put back in."""
    covered: list[str] = []
    with _copies(kept_from_hiding(plan, facts)) as kept, _undone_on_failure(covered):
        for hidden in plan.hide:
            linux.mount("tmpfs", hidden, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755,size=1m,nr_inodes=1024")
            covered.append(hidden)
        _place(kept, "")
        for hidden in plan.hide:
            linux.restrict_mount(hidden, linux.MOUNT_ATTR_RDONLY)
        _mount_proc("/proc")


def _build_root(plan: WorkerPlan, facts: Facts) -> None:
    """A new root, on memory, that holds mount points and nothing else; then leave the old one.

    The copies are taken first: the new root is mounted on the session folder, a path that surely exists, and the private
    /tmp would hide folders below it.
    """
    root = plan.session_dir
    size = f"size={TMP_BYTES},nr_inodes={TMP_FILES},mode=1777"
    safe = linux.MS_NOSUID | linux.MS_NODEV
    covered: list[str] = []
    with _copies(binds(plan, facts)) as shown, _undone_on_failure(covered):
        linux.mount("tmpfs", root, "tmpfs", safe, "mode=0755,size=4m,nr_inodes=16k")
        covered.append(root)
        for folder in ("/tmp", "/dev", "/dev/shm", "/proc", "/etc"):
            os.mkdir(root + folder, 0o755)
        linux.mount("tmpfs", f"{root}/tmp", "tmpfs", safe, size)
        linux.mount("tmpfs", f"{root}/dev/shm", "tmpfs", safe, size)
        for path, target in facts.links:
            os.symlink(target, root + path)
        for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
            os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
        _place(shown, root)
        _mount_proc(f"{root}/proc")
        os.chdir(root)
        linux.pivot_root(".", ".")
    # From here on there is no way back, and no call that may fail for want of a right.
    linux.umount2(".", linux.MNT_DETACH)
    os.chdir("/")
    linux.restrict_mount("/", linux.MOUNT_ATTR_RDONLY)


@contextlib.contextmanager
def _undone_on_failure(covered: list[str]) -> Iterator[None]:
    """Uncover what was mounted over, so that a worker which goes on without this layer finds its folders."""
    try:
        yield
    except OSError:
        os.chdir("/")
        for path in reversed(covered):
            linux.umount2(path, linux.MNT_DETACH)
        raise


@dataclass(frozen=True, slots=True)
class _Copy:
    rule: Rule
    tree: int  # descriptor of a detached mount
    is_folder: bool


@contextlib.contextmanager
def _copies(rules: Iterable[Rule]) -> Iterator[list[_Copy]]:
    """A detached mount of each rule's path that exists, already restricted; closed at the end."""
    copies: list[_Copy] = []
    try:
        for rule in rules:
            try:
                is_folder = stat.S_ISDIR(os.stat(rule.path).st_mode)
            except FileNotFoundError:
                continue
            attributes = linux.MOUNT_ATTR_NOSUID
            attributes |= linux.MOUNT_ATTR_NOEXEC if Right.DEVICE in rule.rights else linux.MOUNT_ATTR_NODEV
            if Right.WRITE not in rule.rights:
                attributes |= linux.MOUNT_ATTR_RDONLY
            copies.append(_Copy(rule, linux.clone_tree(rule.path), is_folder))
            linux.restrict_tree(copies[-1].tree, attributes)
        yield copies
    finally:
        for copy in copies:
            os.close(copy.tree)


def _place(copies: Iterable[_Copy], root: str) -> None:
    """Mount each copy at root + its path; mount points that lie in a copy placed before exist there already."""
    placed: list[str] = []
    for copy in copies:
        path = copy.rule.path
        target = root + path
        if not any(is_below(path, parent) for parent in placed):
            os.makedirs(target if copy.is_folder else os.path.dirname(target), mode=0o755, exist_ok=True)
            if not copy.is_folder:
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        linux.place_tree(copy.tree, target)
        placed.append(path)


def _mount_proc(target: str) -> None:
    """/proc of our pid namespace, read-only: for root some of /proc/sys is writable in every namespace.

    Where a container covers parts of its /proc, the kernel refuses a second one in a user namespace; then the one we
    see is kept, with its covers. It shows foreign processes' ids and command lines; environ, mem, fd and root of
    theirs stay closed by the user namespace, and a signal needs an id of our own pid namespace.
    """
    safe = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOEXEC | linux.MOUNT_ATTR_RDONLY
    try:
        linux.mount("proc", target, "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    except PermissionError:
        tree = linux.clone_tree("/proc")
        try:
            linux.restrict_tree(tree, safe)
            linux.place_tree(tree, target)
        finally:
            os.close(tree)
    else:
        linux.restrict_mount(target, safe)
