"""seccomp: the system calls a worker may not make. Builds the BPF program (pure: program()) and loads it (apply()).

A deny list. Most of it answers EPERM, only a foreign architecture kills; where a library would abort or misbehave on
EPERM the answer is another one, said beside the call. Arguments are compared by their low 32 bits: every one looked at
here is an int for the kernel, or a flag word whose bits are all low.

source   numbers: the kernel's asm/unistd_64.h and asm-generic/unistd.h; struct seccomp_data in linux/seccomp.h
"""

import errno
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from protocol.spec import NetworkMode
from worker.sandbox import linux


@dataclass(frozen=True, slots=True)
class Architecture:
    audit: int  # what the kernel writes in seccomp_data.arch
    column: int  # of NUMBERS


ARCHITECTURES = {"x86_64": Architecture(0xC000003E, 0), "aarch64": Architecture(0xC00000B7, 1)}

# Newer calls than these were not known when the list was written: ENOSYS, which every C library expects of an old kernel.
NEWEST_KNOWN = 469  # file_setattr, Linux 6.17

# name: (x86_64, aarch64); None = that architecture has no such call
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lchown": (94, None),
    "listen": (50, 201),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_getsetattr": (245, 185),
    "mq_notify": (244, 184),
    "mq_open": (240, 180),
    "mq_timedreceive": (243, 183),
    "mq_timedsend": (242, 182),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}

# Reading or steering other processes; kernel interfaces with a long record of holes; what changes the machine or the
# sandbox itself; System V and POSIX queues and shared memory, which no file rule covers.
REFUSED = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise"),
    *("move_pages", "migrate_pages"),
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("keyctl", "add_key", "request_key", "memfd_secret", "modify_ldt"),
    *("mount", "umount2", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("mount_setattr", "statmount", "listmount", "pivot_root", "chroot", "setns", "unshare", "open_by_handle_at"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"),
    *("swapon", "swapoff", "quotactl", "quotactl_fd", "acct", "syslog", "personality", "vhangup"),
    *("settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname", "setdomainname"),
    *("iopl", "ioperm", "uselib", "ustat", "_sysctl", "lookup_dcookie", "nfsservctl"),
    *("shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semtimedop", "semctl"),
    *("msgget", "msgsnd", "msgrcv", "msgctl"),
    *("mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr"),
    *("fanotify_init", "fanotify_mark"),
)

# Landlock covers none of these, and without a mount namespace the operator's files are in sight: the mode of the
# interpreter's files and of everything else of our user could be changed. Pretended, since archivers check the result.
# The calls by descriptor are among them: a file that may be read can be opened, and then changed that way.
CHANGES_OF_MODE = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2"),
    *("chown", "fchown", "lchown", "fchownat"),
)

_LD, _JEQ, _JGT, _JGE, _JSET, _AND, _RET = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data

_KILL, _ALLOW, _ERRNO, _ASK = 0x80000000, 0x7FFF0000, 0x00050000, 0x7FC00000
_X32_BIT = 0x40000000

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET, _TYPE_MASK = 1, 5, 0xF
_TCP, _UDP = 6, 17
_MSG_FASTOPEN = 0x20000000
_NEW_NAMESPACE = 0x02000000 | 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_PTRACER = 1, 36, 0x59616D61
_PRIO_USER, _IOPRIO_WHO_USER = 2, 3
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant
Block = list[Instruction]


def _ret(action: int) -> Instruction:
    return (_RET, 0, 0, action)


def _fail(code: int) -> int:
    return _ERRNO | code


def _argument(index: int) -> Instruction:
    return (_LD, 0, 0, _FIRST_ARGUMENT + 8 * index)


def _if_equal(value: int, block: Block) -> Block:
    """Run block when the accumulator is value; block has to end in a return."""
    return [(_JEQ, 0, len(block), value), *block]


def _if_any_bit(mask: int, block: Block) -> Block:
    return [(_JSET, 0, len(block), mask), *block]


def _unless_equal(value: int, block: Block) -> Block:
    return [(_JEQ, len(block), 0, value), *block]


def _one_of(values: Iterable[int], found: int, otherwise: int) -> Block:
    """End with found when the accumulator is one of values."""
    return [instruction for value in values for instruction in _if_equal(value, [_ret(found)])] + [_ret(otherwise)]


def program(network: NetworkMode, *, machine: str, pretend_chmod: bool, ask_to_connect: bool = False) -> bytes:
    """The filter, as 8-byte BPF instructions.

    network         NONE: no socket · GATEWAY: TCP over IPv4 · OPEN: IPv4, IPv6, routing netlink; never a Unix socket
    pretend_chmod   answer changes of mode and owner with success, and make none
    ask_to_connect  connect() is answered by whoever holds the filter's listener, and no socket takes connections
    raises          OSError(ENOSYS) on an architecture without a table
    """
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        raise OSError(errno.ENOSYS, f"no system call table for {machine}")
    code: Block = [(_LD, 0, 0, _ARCH), *_unless_equal(architecture.audit, [_ret(_KILL)]), (_LD, 0, 0, _NUMBER)]
    # x32 numbers are among these: the same kernel by another table.
    code += [(_JGT, 0, 1, NEWEST_KNOWN), _ret(_fail(errno.ENOSYS))]

    def on(name: str, block: Block) -> None:
        number = NUMBERS[name][architecture.column]
        if number is not None:
            code.extend(_if_equal(number, block))

    for name in REFUSED:
        on(name, [_ret(_fail(errno.EPERM))])
    # Flags of clone3 lie in memory, out of a filter's sight. ENOSYS makes every C library fall back to clone.
    on("clone3", [_ret(_fail(errno.ENOSYS))])
    on("clone", [_argument(0), *_if_any_bit(_NEW_NAMESPACE, [_ret(_fail(errno.EPERM))]), _ret(_ALLOW)])
    # Files without a name that lie in memory are resident nowhere, so that whoever counts a tree's memory misses them.
    # Libraries know kernels that have none (before 3.17).
    on("memfd_create", [_ret(_fail(errno.ENOSYS))])
    # 128 instances a *user*, shared with the supervisor; libraries know "too many".
    for name in ("inotify_init", "inotify_init1"):
        on(name, [_ret(_fail(errno.EMFILE))])
    options = (_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_PTRACER)
    on("prctl", [_argument(0), *_one_of(options, _fail(errno.EPERM), _ALLOW)])
    on("prlimit64", [_argument(0), *_one_of((0,), _ALLOW, _fail(errno.EPERM))])
    for name, all_of_a_user in (("setpriority", _PRIO_USER), ("ioprio_set", _IOPRIO_WHO_USER)):
        whole_user = _if_equal(all_of_a_user, [_ret(_fail(errno.EPERM))])
        on(name, [_argument(0), *whole_user, _argument(1), *_one_of((0,), _ALLOW, _fail(errno.EPERM))])
    # Pretended: libraries call these with their own thread's id, and libzmq aborts on EPERM.
    for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        on(name, [_argument(0), *_one_of((0,), _ALLOW, _fail(0))])
    on("ioctl", [_argument(1), *_one_of((_TIOCSTI, _TIOCLINUX), _fail(errno.EPERM), _ALLOW)])
    if pretend_chmod:
        for name in CHANGES_OF_MODE:
            on(name, [_ret(_fail(0))])
    on("socket", _socket(network))
    # asyncio needs pairs of streams. A datagram pair is a way out: each sendto may name another socket's path.
    on(
        "socketpair",
        [
            _argument(1),
            (_AND, 0, 0, _TYPE_MASK),
            *_one_of((_SOCK_STREAM, _SOCK_SEQPACKET), _ALLOW, _fail(errno.EACCES)),
        ],
    )
    if network is NetworkMode.GATEWAY:
        # It connects without connect(), past Landlock.
        for name, flags in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
            refusal = _if_any_bit(_MSG_FASTOPEN, [_ret(_fail(errno.EACCES))])
            on(name, [_argument(flags), *refusal, _ret(_ALLOW)])
    if ask_to_connect:
        on("connect", [_ret(_ASK)])
        # In the machine's own network: a port that listens there is a way in for everybody else. listen() binds by
        # itself where it has to.
        for name in ("bind", "listen"):
            on(name, [_ret(_fail(errno.EACCES))])
    code.append(_ret(_ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _socket(network: NetworkMode) -> Block:
    """Ends in a return. MPTCP (262) and every family not named are refused."""
    refuse = _ret(_fail(errno.EACCES))
    if network is NetworkMode.NONE:
        return [refuse]
    if network is NetworkMode.OPEN:
        internet = [_argument(2), *_one_of((0, _TCP, _UDP), _ALLOW, _fail(errno.EACCES))]
        netlink = [_argument(2), *_one_of((0,), _ALLOW, _fail(errno.EACCES))]
        return [
            _argument(0),
            *_if_equal(_AF_INET, internet),
            *_if_equal(_AF_INET6, internet),
            *_if_equal(_AF_NETLINK, netlink),
            refuse,
        ]
    return [
        _argument(0),
        *_unless_equal(_AF_INET, [refuse]),
        _argument(1),
        (_AND, 0, 0, _TYPE_MASK),
        *_unless_equal(_SOCK_STREAM, [refuse]),
        _argument(2),
        *_one_of((0, _TCP), _ALLOW, _fail(errno.EACCES)),
    ]


def apply(network: NetworkMode, *, machine: str, pretend_chmod: bool, ask_to_connect: bool = False) -> int | None:
    """Load the filter on this thread and its descendants. Needs no_new_privs. raises OSError

    returns   with ask_to_connect the listener, which answers every connect() from here on; until it does, they wait
    """
    filters = program(network, machine=machine, pretend_chmod=pretend_chmod, ask_to_connect=ask_to_connect)
    if ask_to_connect:
        return linux.seccomp_filter_with_listener(filters)
    linux.seccomp_filter(filters)
    return None
