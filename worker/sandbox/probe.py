"""measure(): build a plan's sandbox in a throw-away child, try to break out of it, and say which layers hold.

Nothing is inferred from versions: a kernel may have Landlock and keep it switched off, allow unshare and refuse the
maps. A layer that was put in place and then lets through what it forbids is missing.
"""

import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable

import msgspec

from protocol.content import Access
from protocol.spec import Layer, NetworkMode, WorkerPlan
from worker import sandbox
from worker.sandbox import linux, namespaces
from worker.sandbox.facts import facts


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
    """Try, from inside, what each achieved layer forbids; those that let it happen."""
    escapes: dict[Layer, Callable[[], object]] = {
        Layer.USER_NS: _know_every_user,
        Layer.PID_NS: _be_one_of_many,
        Layer.OWN_UID: lambda: os.setuid(0),
        Layer.NO_NEW_PRIVS: lambda: linux.prctl(linux.PR_CAPBSET_DROP, 0),
        Layer.RLIMITS: _raise_a_limit,
        Layer.SECCOMP: lambda: linux.unshare(linux.CLONE_NEWUTS),
    }
    if applied.network is NetworkMode.NONE:
        escapes[Layer.SECCOMP] = lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if plan.access is not Access.FULL:
        escapes[Layer.MOUNT_NS] = lambda: os.stat("/sys")
        escapes[Layer.LANDLOCK] = lambda: os.listdir("/")
    return frozenset(layer for layer, escape in escapes.items() if layer in applied.layers and _succeeds(escape))


def _succeeds(escape: Callable[[], object]) -> bool:
    try:
        escape()
    except (OSError, ValueError):
        return False
    return True


def _know_every_user() -> None:
    with open("/proc/self/uid_map", encoding="ascii") as file:
        if int(file.read().split()[2]) == 1:
            raise PermissionError(errno.EPERM, "only our own id is mapped")


def _be_one_of_many() -> None:
    if os.getpid() == 1:
        raise ProcessLookupError(errno.ESRCH, "nobody came before us")


def _raise_a_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1))
