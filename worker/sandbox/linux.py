"""Every Linux call of the hostile side and its nanny, by ctypes; nobody else on this side makes one.

A call that this platform or kernel does not have answers OSError(ENOSYS), so a caller needs one `except OSError` for
both "refused" and "absent". Numbers are from the kernel's own headers (include/uapi), x86_64 and aarch64.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import signal
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

LINUX = sys.platform == "linux"

_libc = ctypes.CDLL(None, use_errno=True) if LINUX else None
if _libc is not None:
    _libc.syscall.restype = ctypes.c_long

_MACHINE = platform.machine()

# name -> (x86_64, aarch64); from 424 on the numbers are the same everywhere
_NUMBERS: dict[str, tuple[int, int]] = {
    "prctl": (157, 167),
    "unshare": (272, 97),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "capget": (125, 90),
    "capset": (126, 91),
    "waitid": (247, 95),
    "seccomp": (317, 277),
    "ptrace": (101, 117),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "close_range": (436, 436),
    "mount_setattr": (442, 442),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
}


def number(name: str) -> int:
    """The number of a system call here; -1, which every kernel answers with ENOSYS, on a machine we do not know."""
    column = {"x86_64": 0, "aarch64": 1}.get(_MACHINE)
    return -1 if column is None else _NUMBERS[name][column]


SyscallArgument = int | bytes | None | ctypes.Array[ctypes.c_char] | ctypes.Structure


def syscall(nr: int, *args: SyscallArgument) -> int:
    """One raw system call. bytes are passed by address, structures and buffers by reference.

    raises OSError with the kernel's errno; ENOSYS where there is no Linux
    """
    if _libc is None or nr < 0:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    raw: list[object] = []
    for arg in args:
        if arg is None:
            raw.append(ctypes.c_void_p(None))
        elif isinstance(arg, int):
            # A whole register: an int would leave the upper half of a 64-bit argument undefined.
            raw.append(ctypes.c_ulong(arg & 0xFFFFFFFFFFFFFFFF))
        elif isinstance(arg, bytes):
            raw.append(ctypes.c_char_p(arg))
        else:
            raw.append(ctypes.byref(arg))
    result: int = _libc.syscall(ctypes.c_long(nr), *raw)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


# --- processes ------------------------------------------------------------------------------------------------

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4


def prctl(option: int, *args: int) -> int:
    """raises OSError"""
    padded = (*args, 0, 0, 0, 0)[:4]
    return syscall(number("prctl"), option, *padded)


def die_with_parent() -> None:
    """SIGKILL when the *thread* that forked us ends. The caller checks afterwards that the parent still lives."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def set_dumpable(value: int) -> None:
    """0: no ptrace, no /proc/<pid>/{environ,mem,fd} for others of our user. 1: our uid owns /proc/<pid> again."""
    prctl(PR_SET_DUMPABLE, value)


def become_subreaper() -> None:
    """Orphans of our tree become our children instead of init's."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def no_new_privs() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def pidfd_open(pid: int) -> int:
    """A descriptor that is readable once pid has ended. raises OSError: ENOSYS before Linux 5.3, ESRCH when the process is gone"""
    return syscall(number("pidfd_open"), pid, 0)


def children(pid: int) -> list[int]:
    """Those that /proc shows; none when it shows no such process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += [int(child) for child in file.read().split()]
    return found


def descendants(pid: int) -> Iterator[int]:
    """All below pid, parents first."""
    for child in children(pid):
        yield child
        yield from descendants(child)


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc tells of a process to everybody.

    started    clock ticks since boot
    own_bytes  resident and swapped, without pages of files; pages shared with a fork are in both
    cpu_s      its own and that of children it has waited for
    """

    started: int
    session: int
    tasks: int
    own_bytes: int
    cpu_s: float


_TICKS = os.sysconf("SC_CLK_TCK")


def process(pid: int) -> Process | None:
    """None when it has ended, as a zombie too."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read().rpartition(b")")[2].split()  # behind the name, in which anything may stand
        if stat[0] in b"ZX":
            return None
        return Process(
            started=int(stat[19]),
            session=int(stat[3]),
            tasks=int(stat[17]),
            own_bytes=_kib_of(f"/proc/{pid}/status", (b"RssAnon:", b"RssShmem:", b"VmSwap:")) * 1024,
            cpu_s=sum(map(int, stat[11:15])) / _TICKS,
        )
    except OSError:
        return None


def weight_bytes(pid: int) -> int:
    """What it takes of memory, a shared page counted in parts; own_bytes where the kernel does not tell us that."""
    try:
        return _kib_of(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")) * 1024
    except OSError:
        found = process(pid)
        return 0 if found is None else found.own_bytes


def _kib_of(path: str, names: tuple[bytes, ...]) -> int:
    """The sum of these lines. raises OSError"""
    with open(path, "rb") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(names))


def demote_session(pid: int) -> None:
    """Niceness 19 for the whole session of pid, as the scheduler sees sessions. raises OSError: EAGAIN, try later"""
    with open(f"/proc/{pid}/autogroup", "w", encoding="ascii") as file:
        file.write("19")


# --- namespaces and mounts ------------------------------------------------------------------------------------

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

MNT_DETACH = 2


def unshare(flags: int) -> None:
    """raises OSError: EPERM refused, EINVAL with a second thread (NEWUSER), ENOSPC over the namespaces' limit"""
    syscall(number("unshare"), flags)


def mount(source: str | None, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    """raises OSError"""
    syscall(
        number("mount"),
        None if source is None else os.fsencode(source),
        os.fsencode(target),
        None if kind is None else os.fsencode(kind),
        flags,
        None if data is None else os.fsencode(data),
    )


def umount2(target: str, flags: int = 0) -> None:
    """raises OSError"""
    syscall(number("umount2"), os.fsencode(target), flags)


def pivot_root(new_root: str, put_old: str) -> None:
    """raises OSError"""
    syscall(number("pivot_root"), os.fsencode(new_root), os.fsencode(put_old))


# --- capabilities ---------------------------------------------------------------------------------------------

_CAPABILITY_VERSION_3 = 0x20080522


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [
        (f"{name}_{half}", ctypes.c_uint32) for half in "01" for name in ("effective", "permitted", "inheritable")
    ]


def capset(effective: int, permitted: int, inheritable: int) -> None:
    """Set this thread's capability sets, 64-bit masks. raises OSError(EPERM) when permitted would grow"""
    low, high = 0xFFFFFFFF, 32
    data = _CapData(
        effective & low,
        permitted & low,
        inheritable & low,
        effective >> high,
        permitted >> high,
        inheritable >> high,
    )
    syscall(number("capset"), _CapHeader(_CAPABILITY_VERSION_3, 0), data)


CAP_DAC_OVERRIDE = 1 << 1
CAP_KILL = 1 << 5
CAP_SYS_PTRACE = 1 << 19


def permitted_capabilities() -> int:
    """Those that we could have, as a mask; 0 where nobody tells."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16)
    return 0


def drop_capabilities(keep: int = 0) -> None:
    """No capability left but those of the mask, and none to be had again by exec.

    keep    capabilities to stay effective; what a nanny needs whose worker has a uid of its own: namespaces.py
    raises  OSError when even lowering is refused
    """
    # Bounding set first: dropping from it needs CAP_SETPCAP.
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # EINVAL: past the kernel's last one; EPERM: an ordinary user has no CAP_SETPCAP and nothing to lose
    try:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # before Linux 4.3 there is no ambient set
            raise
    capset(keep, keep, 0)


# --- detached mounts (Linux 5.2; attributes 5.12) -------------------------------------------------------------

MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
MOUNT_ATTR_NOEXEC = 8

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def clone_tree(path: str) -> int:
    """A detached copy of all that is mounted at and below path, as a descriptor. raises OSError

    Always recursive: in a user namespace the kernel refuses to show what a mount below path covers.
    """
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    return syscall(number("open_tree"), _AT_FDCWD, os.fsencode(path), flags)


def restrict_tree(tree: int, attributes: int) -> None:
    """Set MOUNT_ATTR_* on a detached copy, everything below included. raises OSError"""
    attr = _MountAttr(attributes, 0, 0, 0)
    syscall(number("mount_setattr"), tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, attr, ctypes.sizeof(attr))


def restrict_mount(path: str, attributes: int) -> None:
    """Set MOUNT_ATTR_* on the one mount at path. raises OSError"""
    attr = _MountAttr(attributes, 0, 0, 0)
    syscall(number("mount_setattr"), _AT_FDCWD, os.fsencode(path), 0, attr, ctypes.sizeof(attr))


def place_tree(tree: int, target: str) -> None:
    """Mount a detached copy on an existing path. raises OSError"""
    syscall(number("move_mount"), tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


# --- Landlock and seccomp -------------------------------------------------------------------------------------


def landlock_abi() -> int:
    """0 where Landlock is absent, off at boot, or refused to us."""
    try:
        return syscall(number("landlock_create_ruleset"), None, 0, 1)
    except OSError:
        return 0


def landlock_create_ruleset(attr: bytes) -> int:
    """The rule set's descriptor. raises OSError"""
    return syscall(number("landlock_create_ruleset"), attr, len(attr), 0)


def landlock_add_rule(ruleset: int, kind: int, rule: bytes) -> None:
    """raises OSError: EINVAL for a right that a file cannot have, or one that the rule set does not handle"""
    syscall(number("landlock_add_rule"), ruleset, kind, rule, 0)


def landlock_restrict_self(ruleset: int) -> None:
    """Binds this thread and all its descendants, for ever. raises OSError(EPERM) without no_new_privs"""
    syscall(number("landlock_restrict_self"), ruleset, 0)


class _FilterProgram(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


_SECCOMP_SET_MODE_FILTER = 1


def seccomp_filter(instructions: bytes) -> None:
    """Load a filter of 8-byte BPF instructions on this thread and its descendants. raises OSError"""
    program = _FilterProgram(len(instructions) // 8, instructions)
    syscall(number("seccomp"), _SECCOMP_SET_MODE_FILTER, 0, program)


def seccomp_filter_with_listener(instructions: bytes) -> int:
    """As seccomp_filter; returns the descriptor at which the filter's notifications arrive (Linux 5.0). raises OSError"""
    program = _FilterProgram(len(instructions) // 8, instructions)
    return syscall(number("seccomp"), _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER, program)


# --- seccomp user notification (Linux 5.0; a descriptor can be installed since 5.9) -----------------------------

_SECCOMP_FILTER_FLAG_NEW_LISTENER = 1 << 3
_NOTIF_RECV, _NOTIF_SEND, _NOTIF_ADDFD = 0xC0502100, 0xC0182101, 0x40182103
_NOTIF = struct.Struct("=QII iIQ6Q")  # id, pid, flags, and struct seccomp_data: number, arch, instruction, arguments
_RESPONSE = struct.Struct("=QqiI")  # id, value, error, flags
_ADDFD = struct.Struct("=QIIII")  # id, flags, source, target, its flags
_ADDFD_FLAG_SETFD = 1


class Notification(NamedTuple):
    """A system call that waits for our answer. pid: of the thread, as we see it"""

    id: int
    pid: int
    arguments: tuple[int, ...]


def receive_notification(listener: int) -> Notification:
    """Waits for one. raises OSError(ENOENT): its caller was killed meanwhile"""
    data = bytearray(_NOTIF.size)
    fcntl.ioctl(listener, _NOTIF_RECV, data, True)
    identity, pid, _, _, _, _, *arguments = _NOTIF.unpack(data)
    return Notification(identity, pid, tuple(arguments))


def answer_notification(listener: int, identity: int, error: int) -> None:
    """error: 0, and the call returns 0. raises OSError(ENOENT): its caller no longer waits"""
    fcntl.ioctl(listener, _NOTIF_SEND, bytearray(_RESPONSE.pack(identity, 0, -error, 0)), True)


def install_descriptor(listener: int, identity: int, source: int, target: int) -> None:
    """Put a copy of our descriptor into the caller's place `target`, closed on exec. raises OSError"""
    fcntl.ioctl(listener, _NOTIF_ADDFD, _ADDFD.pack(identity, _ADDFD_FLAG_SETFD, source, target, os.O_CLOEXEC))


def can_install_descriptors() -> bool:
    """Tried in a child, which ends with it: nothing says it but the answer to a try."""
    if not LINUX:
        return False
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(OSError):
            no_new_privs()
            listener = seccomp_filter_with_listener(struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000))  # allow everything
            try:
                install_descriptor(listener, 0, listener, 0)
            except OSError as error:
                code = 0 if error.errno == errno.ENOENT else 1  # no such notification: it knows the order
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0
