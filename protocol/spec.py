"""What starts a worker: the zygote's orders, and the spec that a nanny reads from its pipe.

Part one (WorkerPlan) holds no secret and is read before the worker is forked; part two (NannyKeys) is read only after.
Each part is one frame of protocol.codec. The zygote's socket is SOCK_SEQPACKET: one packet, one order.
"""

from enum import StrEnum

import msgspec

from protocol.codec import Codec
from protocol.content import Access

LAYER_FAILED = 70  # a worker's exit code: a required layer could not be had; its Leaving names it
LAST_WORD_SAID = 0  # a nanny's exit code: its last word (FromNanny) was heard


class Layer(StrEnum):
    """The closed list of isolation layers, as `status` names them."""

    NO_NEW_PRIVS = "no_new_privs"
    DESCRIPTORS = "descriptors"
    ENVIRONMENT = "environment"
    RLIMITS = "rlimits"
    LANDLOCK = "landlock"
    SECCOMP = "seccomp"
    USER_NS = "user_ns"
    MOUNT_NS = "mount_ns"
    PID_NS = "pid_ns"
    NET_NS = "net_ns"
    OWN_UID = "own_uid"
    CGROUP = "cgroup"


class IsolationMode(StrEnum):
    REQUIRED = "required"
    BEST_EFFORT = "best-effort"
    OFF = "off"


class NetworkMode(StrEnum):
    NONE = "none"  # no socket at all: hosts that talk to no model
    GATEWAY = "gateway"
    PROXY = "proxy"
    OPEN = "open"  # `full` only


class WorkerLimits(msgspec.Struct, frozen=True):
    memory_bytes: int
    processes: int
    file_bytes: int
    open_files: int
    cpu_s: int


class WorkerPlan(msgspec.Struct, frozen=True):
    """Part one: how to build this worker's sandbox. Paths are absolute and exist.

    read, write, execute   what the worker may reach beside the interpreter's own files; write implies read
    hide                   folders that `full` must not see (the bridge's home)
    uid, gid               None = keep ours; else the peer's own ids (root supervisor)
    cgroup                 the folder below which its nanny may make a group; empty = none
    own_port               of loopback, for an agent that talks with itself; only in a network of the worker's own
    required               layers without which the worker must not start
    wanted                 layers to try, in no particular order; those in neither list are left out
    """

    access: Access
    mode: IsolationMode
    network: NetworkMode
    session_dir: str
    workspace: str
    media_dir: str
    read: tuple[str, ...]
    write: tuple[str, ...]
    execute: tuple[str, ...]
    hide: tuple[str, ...]
    limits: WorkerLimits
    wanted: tuple[Layer, ...]
    required: tuple[Layer, ...]
    uid: int | None = None
    gid: int | None = None
    gateway_port: int = 0
    own_port: int = 0
    cgroup: str = ""


class NannyKeys(msgspec.Struct, frozen=True):
    """Part two: how this one nanny reaches the bus. CURVE keys are Z85 text."""

    endpoint: str
    routing_id: bytes
    public_key: str
    secret_key: str
    server_key: str


class Preload(msgspec.Struct, frozen=True, tag=True):
    """Import this host's library once, so that every later worker shares it. host: a key of worker.hosts.HOSTS"""

    host: str


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Fork a nanny. Comes with two descriptors: its life socket and its spec pipe (read end)."""


class Spawned(msgspec.Struct, frozen=True, tag=True):
    """The nanny's pid. Comes with one descriptor: its pidfd (none where the platform has none)."""

    pid: int


class SpawnFailed(msgspec.Struct, frozen=True, tag=True):
    reason: str


class Reaped(msgspec.Struct, frozen=True, tag=True):
    """This nanny has ended and been reaped, and so has all that it left behind. code as waitpid tells it."""

    pid: int
    code: int


ToZygote = Preload | Spawn
FromZygote = Spawned | SpawnFailed | Reaped

to_zygote: Codec[ToZygote] = Codec(ToZygote)
from_zygote: Codec[FromZygote] = Codec(FromZygote)
worker_plan: Codec[WorkerPlan] = Codec(WorkerPlan)
nanny_keys: Codec[NannyKeys] = Codec(NannyKeys)
