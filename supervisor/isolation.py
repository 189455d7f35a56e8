"""What a worker's sandbox shall be: its WorkerPlan, and how strong this machine's isolation is.

In come access level, network, folders, settings, and the layers that a probe worker reported in its Ready; out go plans
(grants.py sends them) and the level (status, admission). How a layer is made, only worker/sandbox knows.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from protocol.content import Access, Role
from protocol.spec import IsolationMode, Layer, NetworkMode, WorkerLimits, WorkerPlan
from supervisor.config import Workers

MB = 1024 * 1024
CPU_S = 24 * 3600  # of one process in all its life: a last resort, the turn's timeout comes long before

BARE = (Layer.DESCRIPTORS, Layer.ENVIRONMENT)  # what even `off` keeps: not a wall, but how a worker finds its folders
ALWAYS = (*BARE, Layer.RLIMITS, Layer.NO_NEW_PRIVS, Layer.LANDLOCK, Layer.SECCOMP, Layer.PID_NS, Layer.MOUNT_NS)

_SHEBANG_BYTES = 256
NO_WAY = (
    "this machine gives a worker no way to the model gateway that leads nowhere else: allow unprivileged user namespaces"
    " (on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0), or use Linux 5.9 or later"
)

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SHEBANGS = 4  # most interpreters of interpreters


class Level(StrEnum):
    STRONG = "strong"
    MEDIUM = "medium"
    WEAK = "weak"


def level(layers: Iterable[Layer]) -> Level:
    """Judged by what is closed, not by how many layers there are.

    strong  files, other processes' memory and signals, and sockets, each by two walls: Landlock and seccomp, and
            either namespaces of all three kinds or a uid of the peer's own, to which even without namespaces the kernel
            gives no foreign file and no foreign process
    medium  files, memory and sockets by one wall; a process of the same user may be signalled
    weak    files of the same user are open
    """
    has = frozenset(layers)
    if not has >= {Layer.SECCOMP, Layer.NO_NEW_PRIVS, Layer.DESCRIPTORS, Layer.ENVIRONMENT, Layer.RLIMITS}:
        return Level.WEAK
    namespaces = has >= {Layer.MOUNT_NS, Layer.PID_NS}
    if Layer.LANDLOCK in has and (Layer.OWN_UID in has or (namespaces and Layer.USER_NS in has)):
        return Level.STRONG
    if Layer.LANDLOCK in has or Layer.OWN_UID in has or namespaces:
        return Level.MEDIUM
    return Level.WEAK


class Isolation:
    """What this machine offers. Weak, with everything missing, until a probe worker has told; asked by everybody."""

    def __init__(self, workers: Workers, *, cgroup: Path | None = None) -> None:
        """cgroup: the folder that has been delegated to us for the workers' groups"""
        self.cgroup = cgroup
        self.mode = workers.isolation
        self.layers: tuple[Layer, ...] = ()
        self.has_no_way = False  # to the gateway: seccomp and namespaces both lack what it takes
        self.missing: tuple[Layer, ...] = (
            ()
            if self.mode is IsolationMode.OFF
            else wanted(self.mode, uid=own_uid(), network=NetworkMode.GATEWAY, cgroup=cgroup)
        )

    def learn(self, layers: Iterable[str], missing: Iterable[str], reaches: NetworkMode = NetworkMode.GATEWAY) -> None:
        """From a probe worker's Ready. reaches: what it did when it was to reach the gateway. raises ValueError: a name
        that is no Layer"""
        self.layers = tuple(Layer(name) for name in layers)
        self.missing = tuple(Layer(name) for name in missing)
        self.has_no_way = reaches is NetworkMode.NONE

    def shuts_out(self, network: NetworkMode) -> bool:
        """A worker with this network could not have it, and must not start without."""
        wants = network in (NetworkMode.GATEWAY, NetworkMode.PROXY)
        return wants and self.has_no_way and self.mode is IsolationMode.REQUIRED

    @property
    def level(self) -> Level:
        return level(self.layers)

    def may_serve(self, role: Role) -> bool:
        """At weak only the operator's peer, unless the operator has said otherwise."""
        return self.mode is not IsolationMode.REQUIRED or self.level is not Level.WEAK or role is Role.OPERATOR


def own_uid() -> int | None:
    """Stands for some peer's uid where peers have one: under root. None elsewhere."""
    return 1 if os.geteuid() == 0 else None


def wanted(
    mode: IsolationMode, *, uid: int | None, network: NetworkMode = NetworkMode.NONE, cgroup: Path | None = None
) -> tuple[Layer, ...]:
    """The layers to try. A uid of its own takes the place of a user namespace; a cgroup is there only if delegated.

    A network of its own costs 10 ms, and a worker without any socket has nothing to gain by it.
    """
    if mode is IsolationMode.OFF:
        return BARE
    delegated = () if cgroup is None else (Layer.CGROUP,)
    own_network = (Layer.NET_NS,) if network in (NetworkMode.GATEWAY, NetworkMode.PROXY) else ()
    return (*ALWAYS, *own_network, Layer.USER_NS if uid is None else Layer.OWN_UID, *delegated)


def plan_for(
    *,
    access: Access,
    network: NetworkMode,
    mode: IsolationMode,
    session_dir: Path,
    workspace: Path,
    media_dir: Path,
    read: Iterable[str],
    write: Iterable[str],
    command: tuple[str, ...],
    home: Path,
    workers: Workers,
    uid: int | None,
    layers: Iterable[Layer],
    gateway_port: int = 0,
    own_port: int = 0,
    cgroup: Path | None = None,
) -> WorkerPlan:
    """One worker's plan. The three folders exist.

    command  the agent program; its files join what may be read and executed
    home     the bridge's own, hidden from `full`
    uid      the peer's own (its gid is the same number); None keeps ours
    cgroup   below which the worker's own group is made; None = there is none
    layers   what the probe found: required of every worker under `required`; none before a probe, and for the probe
    """
    programs = program_files(command)
    # A program that lies in the operator's home itself is reachable as a file; its folder would show the bridge's home.
    safe = (folder for folder in programs.folders if not home.is_relative_to(folder))
    tried = wanted(mode, uid=uid, network=network, cgroup=cgroup)
    offered = frozenset(layers)
    return WorkerPlan(
        access=access,
        mode=mode,
        network=network,
        session_dir=str(session_dir),
        workspace=str(workspace),
        media_dir=str(media_dir),
        read=tuple(dict.fromkeys((*read, *safe))),
        write=tuple(write),
        execute=programs.files,
        hide=(str(home),),
        limits=WorkerLimits(
            memory_bytes=workers.memory_mb * MB,
            processes=workers.processes,
            file_bytes=workers.file_mb * MB,
            open_files=workers.open_files,
            cpu_s=CPU_S,
        ),
        wanted=tried,
        required=tuple(layer for layer in tried if layer in offered) if mode is IsolationMode.REQUIRED else (),
        uid=uid,
        gid=uid,
        gateway_port=gateway_port,
        own_port=own_port,
        cgroup="" if cgroup is None else str(cgroup),
    )


def limit_kinds(layers: Iterable[Layer], network: NetworkMode) -> dict[str, str]:
    """How each limit of a worker is held, as `status` shows it: capped by the kernel, or watched and killed after."""
    has = frozenset(layers)
    watched = "watched" if sys.platform == "linux" else "open"  # a nanny sees its tree in /proc
    in_a_cgroup = "capped" if Layer.CGROUP in has else watched
    # RLIMIT_NPROC counts all of a user's processes, and is set only where that user is the worker alone.
    own_count = Layer.RLIMITS in has and (Layer.OWN_UID in has or (Layer.USER_NS in has and os.geteuid() != 0))
    return {
        "memory": in_a_cgroup,
        "processes": "capped" if own_count else in_a_cgroup,
        "cpu": in_a_cgroup,
        "disk": "watched",
        "network": network.value,
    }


class ProgramFiles:
    """files: to be executed, as named and as they really are. folders: to be read for that."""

    def __init__(self) -> None:
        self.files: tuple[str, ...] = ()
        self.folders: tuple[str, ...] = ()

    def add(self, named: str) -> None:
        real = os.path.realpath(named)
        self.files = tuple(dict.fromkeys((*self.files, named, real)))
        folders = [folder for path in (named, real) for folder in _folders_of(path)]
        self.folders = tuple(dict.fromkeys((*self.folders, *folders)))


def program_files(command: tuple[str, ...]) -> ProgramFiles:
    """The program of a command, found in our PATH, and the interpreters that its first line names.

    A program that is not found adds nothing: its host says so when it is started.
    """
    found = ProgramFiles()
    named = shutil.which(command[0]) if command else None
    for _ in range(_SHEBANGS):
        if named is None:
            break
        named = os.path.abspath(named)
        found.add(named)
        named = _interpreter_of(named)
    return found


def resolved(command: tuple[str, ...]) -> tuple[str, ...]:
    """The same command with its program's whole path: a worker's PATH is not ours."""
    found = shutil.which(command[0]) if command else None
    return command if found is None else (os.path.abspath(found), *command[1:])


def search_path(command: tuple[str, ...]) -> dict[str, str]:
    """PATH for an agent program: where it and its interpreters lie comes before the system's folders."""
    own = [os.path.dirname(file) for file in program_files(command).files]
    return {"PATH": ":".join(dict.fromkeys([*own, *SYSTEM_PATH]))} if own else {}


def _interpreter_of(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            first = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    words = os.fsdecode(first[2:]).split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return shutil.which(words[0]) if words else None
    return words[0] if words and os.path.isfile(words[0]) else None


def _folders_of(path: str) -> list[str]:
    """Its own folder; for npm packages the outermost node_modules; for a prefix's bin its lib, or a whole venv.

    Never more of a prefix than that: ~/bin would open the operator's home.
    """
    folder = os.path.dirname(path)
    before, packages, _ = folder.partition("/node_modules")
    if packages:
        return [before + packages]
    if os.path.basename(folder) != "bin":
        return [folder]
    prefix = os.path.dirname(folder)
    if os.path.exists(os.path.join(prefix, "pyvenv.cfg")):
        return [prefix]
    library = os.path.join(prefix, "lib")
    return [folder, library] if os.path.isdir(library) else [folder]
