"""Tries, from inside a sandbox, what its layers forbid: the attempts of protocol.probe, each in a child of its own.

Two ask: hosts/probe.py, in a throw-away worker of the real pool; and measure(), which builds a plan's sandbox in a child
of the caller's. Nothing is inferred from versions: a kernel may have Landlock and keep it switched off, allow unshare and
refuse the maps. A layer that was put in place and then lets through what it forbids is missing.
"""

import contextlib
import ctypes
import errno
import os
import resource
import socket
from collections.abc import Callable, Mapping

import msgspec

from protocol.content import Access
from protocol.probe import STOPPED_BY, Attempt, Targets, attempts_at
from protocol.spec import Layer, NetworkMode, WorkerPlan
from worker import sandbox
from worker.sandbox import linux, namespaces
from worker.sandbox.facts import facts

PATIENCE_S = 2.0  # for a connection that nobody answers
PTRACE_TRACEME = 0
RING_BYTES = 120  # struct io_uring_params

# What a worker's environment holds (plan.environment), and what the Python interpreter may add to it.
OWN_VARIABLES = frozenset(
    {"PATH", "HOME", "TMPDIR", "PWD", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "GIT_CONFIG_NOSYSTEM", "LC_CTYPE"}
)
# What a descriptor may lead to that is no file of the bridge's.
HARMLESS = ("/dev/null", "pipe:", "socket:", "anon_inode:", "/proc/")

Try = Callable[[], object]


class Measured(msgspec.Struct, frozen=True):
    layers: tuple[Layer, ...]
    missing: tuple[Layer, ...]


def measure(plan: WorkerPlan) -> Measured:
    """Callers have one thread. The plan should require nothing, or its first failing layer ends the measurement.

    raises  OSError when the child could not tell
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.close(reading)
            _as_nanny(plan, writing)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as report:
        told = report.read()
    os.waitpid(child, 0)
    if not told:
        raise OSError(errno.EIO, "the trial sandbox could not be built")
    return msgspec.msgpack.decode(told, type=Measured)


def _as_nanny(plan: WorkerPlan, report: int) -> None:
    already = namespaces.enter_nanny(plan, facts())
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            applied = sandbox.apply(plan, already=already, keep=(report,))
            lost = broken(plan, applied)
            held = tuple(layer for layer in applied.layers if layer not in lost)
            missing = tuple(layer for layer in Layer if layer in applied.missing or layer in lost)
            os.write(report, msgspec.msgpack.encode(Measured(held, missing)))
        os._exit(0)
    os.waitpid(child, 0)


def broken(plan: WorkerPlan, applied: sandbox.Applied) -> frozenset[Layer]:
    """Achieved layers that let through what each of them forbids."""
    tries = dict(canaries())
    if plan.access is Access.FULL:  # it shows the whole disk on purpose
        del tries[Attempt.LIST_ROOT], tries[Attempt.SEE_SYSTEM]
    if applied.network is NetworkMode.OPEN:
        del tries[Attempt.OPEN_UDP]
    worked = {attempt for attempt, attack in tries.items() if tried(attack) == 0}
    return frozenset(layer for attempt in worked for layer in STOPPED_BY[attempt] if layer in applied.layers)


def tried(attack: Try) -> int:
    """Make one attempt in a child, which ends with it. Returns the errno that stopped it, 0 if it worked.

    Whatever else ends it is EIO. The caller has one thread.
    """
    child = os.fork()
    if child == 0:
        code = errno.EIO
        try:
            attack()
            code = 0
        except OSError as error:
            code = error.errno or errno.EIO
        except ValueError:  # setrlimit's word for EPERM
            code = errno.EPERM
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else errno.EIO


def attacks(access: Access, targets: Targets) -> Mapping[Attempt, Try]:
    """Every attempt that must fail at this access level, in order, from the process that calls this: a worker's first."""
    above = os.getppid()  # 0 where nobody above has an id in here
    tries = {
        Attempt.READ_JOURNAL: lambda: _open(targets.journal, os.O_RDONLY),
        Attempt.READ_OTHER_PEER: lambda: _open(targets.other_file, os.O_RDONLY),
        Attempt.READ_WORKSPACE: lambda: _open(targets.workspace_file, os.O_RDONLY),
        Attempt.CHANGE_WORKSPACE: lambda: _open(targets.workspace_file, os.O_WRONLY),
        Attempt.PLANT_FILE: lambda: _plant(targets.home, targets.home_id),
        Attempt.CHANGE_CODE: lambda: _open(__file__, os.O_WRONLY | os.O_APPEND),
        Attempt.CONNECT_BRIDGE: lambda: _connect(socket.AF_UNIX, targets.ctl_socket),
        Attempt.CONNECT_TCP: lambda: _connect(socket.AF_INET, ("127.0.0.1", targets.tcp_port)),
        Attempt.SIGNAL_BRIDGE: lambda: os.kill(_known(targets.pid, above), 0),
        Attempt.READ_ENVIRONMENT: lambda: _open(f"/proc/{_known(targets.pid, above)}/environ", os.O_RDONLY),
        **canaries(),
    }
    return {attempt: tries[attempt] for attempt in attempts_at(access)}


def canaries() -> Mapping[Attempt, Try]:
    """Those attempts that need to know nothing of the bridge."""
    above = os.getppid()
    return {
        Attempt.LIST_ROOT: lambda: os.listdir("/"),
        Attempt.SEE_SYSTEM: lambda: os.stat("/sys"),
        Attempt.OPEN_UDP: lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
        Attempt.SEE_PROCESSES: lambda: _known(above, above),
        Attempt.TRACE: lambda: linux.syscall(linux.number("ptrace"), PTRACE_TRACEME, 0, None, None),
        Attempt.NEW_NAMESPACE: lambda: linux.unshare(linux.CLONE_NEWUSER),
        Attempt.KERNEL_QUEUE: _make_a_ring,
        Attempt.BECOME_ROOT: lambda: os.setuid(0),
        Attempt.KNOW_USERS: _know_every_user,
        Attempt.REGAIN_CAPABILITY: lambda: linux.prctl(linux.PR_CAPBSET_DROP, 0),
        Attempt.RAISE_LIMIT: _raise_a_limit,
        Attempt.INHERIT_VARIABLES: _inherit_variables,
        Attempt.INHERIT_FILES: _inherit_files,
    }


def _open(path: str, flags: int) -> None:
    """That it can be opened is enough: nothing is read or written."""
    os.close(os.open(path, flags | os.O_CLOEXEC))


def _plant(folder: str, identity: tuple[int, int]) -> None:
    found = os.stat(folder)
    if identity not in ((0, 0), (found.st_dev, found.st_ino)):
        raise FileNotFoundError(errno.ENOENT, "another folder of that name")
    path = f"{folder}/planted"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)


def _connect(family: int, address: object) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(PATIENCE_S)
        client.connect(address)  # type: ignore[arg-type]  # whichever the family takes


def _known(pid: int, above: int) -> int:
    """A foreign process's id, where foreign processes have one: in a pid namespace the number is somebody else's."""
    if above == 0:
        raise ProcessLookupError(errno.ESRCH, "nobody came before us")
    return pid


def _know_every_user() -> None:
    with open("/proc/self/uid_map", encoding="ascii") as file:
        if int(file.read().split()[2]) == 1:
            raise PermissionError(errno.EPERM, "only our own id is mapped")


def _make_a_ring() -> None:
    parameters = ctypes.create_string_buffer(RING_BYTES)
    os.close(linux.syscall(linux.number("io_uring_setup"), 1, parameters))


def _raise_a_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1))


def _inherit_variables() -> None:
    if os.environ.keys() <= OWN_VARIABLES:
        raise FileNotFoundError(errno.ENOENT, "nothing but our own")


def _inherit_files() -> None:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder's own descriptor is closed by now
            if int(name) > 2 and not os.readlink(f"/proc/self/fd/{name}").startswith(HARMLESS):
                return
    raise FileNotFoundError(errno.EBADF, "nothing but our own")
