"""Runs an attack in a child that sits in a real sandbox, and the same attack in a child that does not.

A child plays the nanny (enter_nanny), its child the worker (apply, then the attack); the outcome comes back by a pipe.
Each child is killed with its parent, every wait has a deadline.
"""

import contextlib
import errno
import json
import os
import select
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from protocol.content import Access
from protocol.spec import IsolationMode, Layer, NetworkMode, WorkerLimits, WorkerPlan
from worker import sandbox
from worker.sandbox import linux, namespaces
from worker.sandbox.facts import facts
from worker.sandbox.plan import Facts

DEADLINE_S = 60.0

Attack = Callable[[], object]

IN_EVERY_SHAPE = (
    Layer.DESCRIPTORS,
    Layer.ENVIRONMENT,
    Layer.RLIMITS,
    Layer.NO_NEW_PRIVS,
    Layer.LANDLOCK,
    Layer.SECCOMP,
)
SHAPES: dict[str, tuple[Layer, ...]] = {
    "namespaces": (*IN_EVERY_SHAPE, Layer.USER_NS, Layer.PID_NS, Layer.MOUNT_NS),
    "without_landlock": (*(set(IN_EVERY_SHAPE) - {Layer.LANDLOCK}), Layer.USER_NS, Layer.PID_NS, Layer.MOUNT_NS),
    "without_namespaces": IN_EVERY_SHAPE,
}
if os.geteuid() == 0:
    SHAPES["own_uid"] = (*IN_EVERY_SHAPE, Layer.OWN_UID, Layer.PID_NS, Layer.MOUNT_NS)
    SHAPES["own_uid_without_namespaces"] = (*IN_EVERY_SHAPE, Layer.OWN_UID)
# Ids that no other run on this machine has: RLIMIT_NPROC counts all processes of one.
PEER_UID = 1_000_000 + 2 * os.getpid()
OTHER_UID = PEER_UID + 1


@dataclass(frozen=True)
class Outcome:
    """value: what the attack returned. code: the errno it failed with. broke: it ended in another way."""

    value: object = None
    code: int | None = None
    broke: str = ""

    @property
    def refused(self) -> bool:
        return self.code is not None

    def __str__(self) -> str:
        return self.broke or (errno.errorcode.get(self.code, str(self.code)) if self.code else f"worked: {self.value}")


@dataclass(frozen=True)
class Stage:
    """A bridge's home with two peers' folders in it; one of them is the attacker's. sibling: another peer's process."""

    home: Path
    shape: str
    sibling: int
    token: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "token", self.home / "token")

    def folder(self, kind: str, peer: str = "mine") -> Path:
        return self.home / kind / peer

    @property
    def workspace(self) -> Path:
        return self.folder("workspaces")

    def plan(
        self,
        access: Access = Access.WORKSPACE,
        *,
        network: NetworkMode = NetworkMode.NONE,
        without: tuple[Layer, ...] = (),
        also: tuple[Layer, ...] = (),
        limits: WorkerLimits | None = None,
        gateway_port: int = 0,
    ) -> WorkerPlan:
        layers = tuple(layer for layer in (*SHAPES[self.shape], *also) if layer not in without)
        uid = PEER_UID if Layer.OWN_UID in layers else None
        return WorkerPlan(
            access=access,
            mode=IsolationMode.REQUIRED,
            network=network,
            session_dir=str(self.folder("sessions")),
            workspace=str(self.workspace),
            media_dir=str(self.folder("media")),
            read=(),
            write=(),
            execute=(),
            hide=(str(self.home),),
            limits=limits or WorkerLimits(1 << 30, 64, 64 << 20, 256, 600),
            wanted=layers,
            required=layers,
            uid=uid,
            gid=uid,
            gateway_port=gateway_port,
        )

    def has(self, layer: Layer) -> bool:
        return layer in SHAPES[self.shape]

    @property
    def siblings_uid(self) -> int | None:
        return OTHER_UID if self.has(Layer.OWN_UID) else None

    @property
    def hides_our_interpreter(self) -> bool:
        """A uid of its own without mounts of its own cannot pass folders like /root."""
        if not self.has(Layer.OWN_UID) or self.has(Layer.MOUNT_NS):
            return False
        parents = Path(facts().programs[0]).parents
        return not all(parent.stat().st_mode & 0o001 for parent in parents)

    def inside(self, attack: Attack, plan: WorkerPlan | None = None, *, machine: Facts | None = None) -> Outcome:
        """Run attack in a sandbox that has every layer of the plan, or the child breaks."""
        return inside(attack, plan or self.plan(), machine=machine)


def inside(
    attack: Attack, plan: WorkerPlan, *, machine: Facts | None = None, before: Callable[[], None] | None = None
) -> Outcome:
    """before: what the nanny does first, to make itself a harder machine."""

    def nanny(report: int) -> None:
        if before is not None:
            before()
        already = namespaces.enter_nanny(plan, machine or facts())
        child = os.fork()
        if child == 0:
            linux.die_with_parent()

            def worker() -> object:
                sandbox.apply(plan, already=already, keep=(report,), facts=machine)
                return attack()

            _tell(report, worker)
        os.close(report)
        namespaces.leave_nanny(plan, machine or facts())
        os.waitpid(child, 0)

    return _in_child(nanny)


def outside(attack: Attack, *, uid: int | None = None, as_namespace_root: bool = False) -> Outcome:
    """The same attack without a sandbox, by the same user or by uid; or with all capabilities of a user namespace."""

    def child(report: int) -> None:
        if uid is not None:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        if as_namespace_root:
            become_namespace_root()
        _tell(report, attack)

    return _in_child(child)


def become_namespace_root() -> None:
    """A user namespace in which we hold every capability, and mounts of our own."""
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _in_child(body: Callable[[int], None]) -> Outcome:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        linux.die_with_parent()
        os.close(reading)
        os.setsid()
        try:
            body(writing)
        except BaseException:
            with contextlib.suppress(OSError):
                os.write(writing, json.dumps({"broke": traceback.format_exc()}).encode())
        os._exit(0)
    os.close(writing)
    told = b""
    try:
        while select.select([reading], [], [], DEADLINE_S)[0]:
            read = os.read(reading, 65536)
            if not read:
                break
            told += read
        else:
            return Outcome(broke=f"no answer in {DEADLINE_S} s")
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return Outcome(**json.loads(told)) if told else Outcome(broke="it died without a word")


def _tell(report: int, attack: Attack) -> None:
    """Ends the process."""
    try:
        told: dict[str, object] = {"value": attack()}
    except OSError as error:
        told = {"code": error.errno, "broke": "" if error.errno else repr(error)}
    except BaseException:
        told = {"broke": traceback.format_exc()}
    os.write(report, json.dumps(told).encode())
    os._exit(0)
