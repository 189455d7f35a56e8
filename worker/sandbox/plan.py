"""Decides what each layer of one worker's sandbox has to do: a WorkerPlan and the machine's Facts in, values out.

Pure. The layers (one file each in this folder) perform what is decided here, in the order of ORDER; what a later layer
has to do may depend on what an earlier one achieved, so those functions are told. Folders are decided once, as Rules:
the mount namespace shows them, Landlock allows them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, Flag, auto

from protocol.content import Access
from protocol.spec import Layer, NetworkMode, WorkerPlan

NANNY_LAYERS = (Layer.CGROUP, Layer.USER_NS, Layer.PID_NS)

# Mounting needs the capabilities that later steps give up; the folder for temporary files has to be the new uid's own;
# Landlock and seccomp forbid mounting and need no_new_privs.
ORDER = (
    Layer.DESCRIPTORS,
    Layer.MOUNT_NS,
    Layer.NET_NS,
    Layer.RLIMITS,
    Layer.OWN_UID,
    Layer.ENVIRONMENT,
    Layer.NO_NEW_PRIVS,
    Layer.LANDLOCK,
    Layer.SECCOMP,
)

TMP_BYTES = 64 * 1024 * 1024  # of /tmp and of /dev/shm, which are memory; TMPDIR lies on disk, in the session folder
TMP_FILES = 16 * 1024
NANNY_TASKS = 8  # in a user namespace the nanny and ZeroMQ's threads count against the worker's RLIMIT_NPROC

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/openssl.cnf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
)
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found on this machine, for one interpreter.

    euid          of the nanny, before any namespace
    machine       as platform.machine() says
    landlock_abi  0 = none
    interpreter   folders of the interpreter, its libraries and our own code
    programs      files that must be executable for that interpreter to start again
    system        those of SYSTEM_FOLDERS, DEVICES and ETC that exist and are no links
    links         system folders that are links: (path, target)
    loaders       the dynamic loaders: without EXECUTE on them no program starts
    notifies      seccomp can ask the nanny, which can answer with a descriptor (Linux 5.9)
    """

    euid: int
    machine: str
    landlock_abi: int
    interpreter: tuple[str, ...]
    programs: tuple[str, ...]
    system: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    loaders: tuple[str, ...]
    notifies: bool = False


class Right(Flag):
    """What a worker may do at and below a path. READ lists folders too."""

    READ = auto()
    WRITE = auto()
    EXECUTE = auto()
    DEVICE = auto()


@dataclass(frozen=True, slots=True)
class Rule:
    path: str
    rights: Right


def takes_own_uid(plan: WorkerPlan, facts: Facts) -> bool:
    """Root with ids of the peer's own needs no user namespace: it may make every other one as it is."""
    return facts.euid == 0 and plan.uid is not None and Layer.OWN_UID in plan.wanted


def works_in(plan: WorkerPlan) -> str:
    """The folder a worker starts in."""
    return plan.session_dir if plan.access is Access.CHAT else plan.workspace


def folders(plan: WorkerPlan, facts: Facts) -> tuple[Rule, ...]:
    """All that the worker reaches, but for /proc and the private /tmp and /dev/shm; parents first, one rule a path.

    Below `workspace` only plan.execute, the interpreter and the loaders may be executed. That keeps an agent's flags
    honest and is no wall: an interpreter, or a loader given a path, runs what it can read.
    """
    rights: dict[str, Right] = {}

    def give(paths: Iterable[str], right: Right) -> None:
        for named in paths:
            path = _past_links(named, facts)
            rights[path] = rights.get(path, Right(0)) | right

    runs = Right.EXECUTE if plan.access in (Access.WORKSPACE, Access.FULL) else Right(0)
    if plan.access is Access.FULL:
        give(["/"], Right.READ | Right.WRITE | Right.EXECUTE | Right.DEVICE)
    give(facts.interpreter, Right.READ | runs)
    for path in facts.system:
        if path in DEVICES:
            give([path], Right.READ | Right.WRITE | Right.DEVICE)
        else:
            give([path], Right.READ | (runs if path in SYSTEM_FOLDERS else Right(0)))
    give((*facts.programs, *facts.loaders, *plan.execute), Right.READ | Right.EXECUTE)
    give(plan.read, Right.READ | runs)
    give(plan.write, Right.READ | Right.WRITE | runs)
    give([plan.media_dir], Right.READ)
    if plan.access is Access.READONLY:
        give([plan.workspace], Right.READ)
    elif plan.access is not Access.CHAT:
        give([plan.workspace], Right.READ | Right.WRITE | runs)
    give([plan.session_dir], Right.READ | Right.WRITE | runs)
    return tuple(Rule(path, rights[path]) for path in sorted(rights, key=lambda path: (path.count("/"), path)))


def _past_links(path: str, facts: Facts) -> str:
    """A path below one of the system's links (/bin/sh), as it is without it: nothing can be mounted over a link."""
    for link, target in facts.links:
        if path == link or is_below(path, link):
            return f"/{target}{path[len(link) :]}"
    return path


def binds(plan: WorkerPlan, facts: Facts) -> tuple[Rule, ...]:
    """What a mount namespace with a root of its own has to show: folders() without what a parent shows already."""
    shown: list[Rule] = []
    for rule in folders(plan, facts):
        parents = [done for done in shown if is_below(rule.path, done.path)]
        if not parents or (rule.rights ^ parents[-1].rights) & Right.WRITE:
            shown.append(rule)
    return tuple(shown)


def kept_from_hiding(plan: WorkerPlan, facts: Facts) -> tuple[Rule, ...]:
    """At `full`: what lies below a hidden folder and has to stay reachable."""
    return tuple(rule for rule in folders(plan, facts) if any(is_below(rule.path, hidden) for hidden in plan.hide))


def landlock_rules(plan: WorkerPlan, facts: Facts, achieved: frozenset[Layer]) -> tuple[Rule, ...]:
    """folders(), /proc, and the private /tmp and /dev/shm where they are private.

    /proc of all processes is readable without a namespace of our own: Landlock's ptrace rule keeps the worker from
    environ, mem, fd and root of processes outside its domain; what stays open there is world-readable (command lines).
    """
    extra = [Rule("/proc", Right.READ)]
    if Layer.MOUNT_NS in achieved and plan.access is not Access.FULL:
        runs = Right.EXECUTE if plan.access is Access.WORKSPACE else Right(0)
        extra += [Rule(path, Right.READ | Right.WRITE | runs) for path in ("/tmp", "/dev/shm")]
        extra += [Rule("/dev", Right.READ)]
    return (*folders(plan, facts), *extra)


class Way(Enum):
    """How a worker reaches the gateway and nothing else. A filter knows no addresses, and Landlock ports alone."""

    LISTENER = "listener"  # a network namespace of its own, in which the nanny serves the gateway's address
    ASKED = "asked"  # each connect() is the nanny's to answer, with a socket that it has connected itself


NO_WAY = (
    "no way to the model gateway: this system grants neither a network namespace (allow unprivileged user namespaces) "
    "nor seccomp notification with descriptors (Linux 5.9)"
)


def way_out(plan: WorkerPlan, facts: Facts, achieved: frozenset[Layer]) -> Way | None:
    """None: this worker needs no gateway, or cannot be let to it."""
    if plan.network not in (NetworkMode.GATEWAY, NetworkMode.PROXY):
        return None
    if Layer.NET_NS in achieved:
        return Way.LISTENER
    return Way.ASKED if facts.notifies and Layer.SECCOMP in plan.wanted else None


def sockets(plan: WorkerPlan, facts: Facts, achieved: frozenset[Layer]) -> NetworkMode:
    """NONE, GATEWAY or OPEN: what the seccomp filter lets a worker create."""
    if plan.network is NetworkMode.OPEN and plan.access is Access.FULL:
        return NetworkMode.OPEN
    return NetworkMode.NONE if way_out(plan, facts, achieved) is None else NetworkMode.GATEWAY


def reached(plan: WorkerPlan, facts: Facts, achieved: frozenset[Layer]) -> NetworkMode:
    """What a worker with these layers reaches: OPEN where nothing was there to stop it."""
    if Layer.SECCOMP not in achieved and Layer.NET_NS not in achieved:
        return NetworkMode.OPEN
    found = sockets(plan, facts, achieved)
    return plan.network if found is NetworkMode.GATEWAY else found


def has_no_way(plan: WorkerPlan, facts: Facts, achieved: frozenset[Layer]) -> bool:
    """The plan promises a way to the gateway, and a worker that goes behind the filter now would have none."""
    return plan.network in (NetworkMode.GATEWAY, NetworkMode.PROXY) and way_out(plan, facts, achieved) is None


def tcp_ports(plan: WorkerPlan, facts: Facts, achieved: frozenset[Layer]) -> tuple[int, ...] | None:
    """Ports that Landlock lets the worker connect to; None where TCP is open."""
    match sockets(plan, facts, achieved):
        case NetworkMode.OPEN:
            return None
        case NetworkMode.GATEWAY:
            return (plan.gateway_port, *bound_ports(plan, achieved))
        case _:
            return ()


def bound_ports(plan: WorkerPlan, achieved: frozenset[Layer]) -> tuple[int, ...]:
    """Ports that Landlock lets the worker take: in the machine's own network none."""
    return (plan.own_port,) if plan.own_port and Layer.NET_NS in achieved else ()


def pretends_chmod(plan: WorkerPlan, achieved: frozenset[Layer]) -> bool:
    """Whether changes of mode and owner are to be pretended: where foreign files are in sight and should be safe."""
    return Layer.MOUNT_NS not in achieved and Layer.OWN_UID not in achieved and plan.access is not Access.FULL


def process_limit(plan: WorkerPlan, facts: Facts, achieved: frozenset[Layer]) -> int | None:
    """For RLIMIT_NPROC, which counts per user: the worker's own number only with a uid, or a user namespace, of its own.

    Root is never held to it, in a user namespace neither (the kernel looks at the uid outside).
    """
    if takes_own_uid(plan, facts):
        return plan.limits.processes
    if Layer.USER_NS in achieved and facts.euid != 0:
        return plan.limits.processes + NANNY_TASKS
    return None


def environment(plan: WorkerPlan, facts: Facts) -> dict[str, str]:
    """The whole environment of a worker. Nothing of ours is inherited; what an agent needs comes with its Grant."""
    own = [path.rpartition("/")[0] for path in (*plan.execute, *facts.programs)]
    return {
        "PATH": ":".join(dict.fromkeys([*own, *SYSTEM_PATH])),
        "HOME": plan.session_dir,
        "TMPDIR": f"{plan.session_dir}/tmp",
        "PWD": works_in(plan),
        "USER": "peer",
        "LOGNAME": "peer",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "GIT_CONFIG_NOSYSTEM": "1",  # behind Landlock alone /etc/gitconfig is there and unreadable: git gives up on that
    }


def is_below(path: str, parent: str) -> bool:
    """Really below: a path is not below itself."""
    return path != parent and path.startswith(parent.rstrip("/") + "/")
