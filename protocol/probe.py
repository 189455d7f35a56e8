"""The trial of a sandbox: what a throw-away worker attempts, and which layers a success would prove broken.

A trial is a turn of PROBE_HOST. Its prompt is Targets as JSON; it answers with Remarked of the level REPORT, each telling of
some attempts how they ended: WORKED, or the name of the error that stopped it. The host is in no table that settings are
checked against, so that no peer's worker can ever be one.
"""

import errno
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from protocol.content import Access
from protocol.spec import Layer

PROBE_HOST = "probe"
REPORT = "trial"
WORKED = "worked"
PER_REPORT = 6  # as many as fit into the line that a remark is; and a turn has few remarks


class Attempt(StrEnum):
    """The closed list, in the order in which they are made and shown."""

    READ_JOURNAL = "read_journal"
    READ_OTHER_PEER = "read_other_peer"
    READ_WORKSPACE = "read_workspace"  # at chat
    CHANGE_WORKSPACE = "change_workspace"  # below workspace
    PLANT_FILE = "plant_file"
    CHANGE_CODE = "change_code"
    LIST_ROOT = "list_root"
    SEE_SYSTEM = "see_system"
    CONNECT_BRIDGE = "connect_bridge"
    CONNECT_TCP = "connect_tcp"
    OPEN_UDP = "open_udp"
    SIGNAL_BRIDGE = "signal_bridge"
    READ_ENVIRONMENT = "read_environment"
    SEE_PROCESSES = "see_processes"
    TRACE = "trace"
    NEW_NAMESPACE = "new_namespace"
    KERNEL_QUEUE = "kernel_queue"
    BECOME_ROOT = "become_root"
    KNOW_USERS = "know_users"
    REGAIN_CAPABILITY = "regain_capability"
    RAISE_LIMIT = "raise_limit"
    INHERIT_VARIABLES = "inherit_variables"
    INHERIT_FILES = "inherit_files"


_FILES = (Layer.MOUNT_NS, Layer.LANDLOCK, Layer.OWN_UID)

# Each of these layers alone is there to stop the attempt, so that a success proves every one of them broken.
STOPPED_BY: dict[Attempt, tuple[Layer, ...]] = {
    Attempt.READ_JOURNAL: _FILES,
    Attempt.READ_OTHER_PEER: _FILES,
    Attempt.READ_WORKSPACE: (Layer.MOUNT_NS, Layer.LANDLOCK),
    Attempt.CHANGE_WORKSPACE: (Layer.MOUNT_NS, Layer.LANDLOCK),
    Attempt.PLANT_FILE: _FILES,
    Attempt.CHANGE_CODE: (Layer.MOUNT_NS, Layer.LANDLOCK),
    Attempt.LIST_ROOT: (Layer.LANDLOCK,),
    Attempt.SEE_SYSTEM: (Layer.MOUNT_NS,),
    Attempt.CONNECT_BRIDGE: (Layer.SECCOMP,),
    Attempt.CONNECT_TCP: (Layer.SECCOMP, Layer.NET_NS),
    Attempt.OPEN_UDP: (Layer.SECCOMP,),
    Attempt.SIGNAL_BRIDGE: (Layer.PID_NS, Layer.OWN_UID),
    Attempt.READ_ENVIRONMENT: (Layer.PID_NS, Layer.OWN_UID, Layer.LANDLOCK),
    Attempt.SEE_PROCESSES: (Layer.PID_NS,),
    Attempt.TRACE: (Layer.SECCOMP,),
    Attempt.NEW_NAMESPACE: (Layer.SECCOMP,),
    Attempt.KERNEL_QUEUE: (Layer.SECCOMP,),
    Attempt.BECOME_ROOT: (Layer.OWN_UID,),
    Attempt.KNOW_USERS: (Layer.USER_NS,),
    Attempt.REGAIN_CAPABILITY: (Layer.NO_NEW_PRIVS,),
    Attempt.RAISE_LIMIT: (Layer.RLIMITS,),
    Attempt.INHERIT_VARIABLES: (Layer.ENVIRONMENT,),
    Attempt.INHERIT_FILES: (Layer.DESCRIPTORS,),
}


# Where an attempt is what the access level is for.
_MEANT: dict[Attempt, frozenset[Access]] = {
    Attempt.READ_WORKSPACE: frozenset(Access) - {Access.CHAT},
    Attempt.CHANGE_WORKSPACE: frozenset({Access.WORKSPACE, Access.FULL}),
}


def attempts_at(access: Access) -> tuple[Attempt, ...]:
    """Those that must fail at this level."""
    return tuple(attempt for attempt in Attempt if access not in _MEANT.get(attempt, ()))


class Targets(msgspec.Struct, frozen=True):
    """What there is to reach. Paths are the bridge's own names; pid is the supervisor's; tcp_port listens on loopback.

    home_id   device and inode of home: a worker's private /tmp may hold an empty folder of that name. (0, 0): not told
    """

    journal: str
    other_file: str
    workspace_file: str  # in the worker's own workspace
    home: str
    ctl_socket: str
    pid: int
    tcp_port: int
    home_id: tuple[int, int] = (0, 0)


def ended(code: int) -> str:
    """How an attempt ended, from its errno; 0 = it worked."""
    return WORKED if code == 0 else errno.errorcode.get(code, str(code))


def report(ends: Iterable[tuple[Attempt, str]]) -> str:
    """Attempts and their ends in one line."""
    return " ".join(f"{attempt.value}={end}" for attempt, end in ends)


def reported(line: str) -> tuple[tuple[Attempt, str], ...]:
    """raises ValueError: not a report's line"""
    pairs = [word.partition("=") for word in line.split()]
    return tuple((Attempt(attempt), end) for attempt, _, end in pairs)
