"""Runs an attack inside a real worker, and the same attack in a process that sits in no sandbox.

Stage.inside() goes the whole way: pool, zygote, nanny, worker (supervised.py, attacked.py). The function inside() is for
what no real start can give, such as another machine's kernel: a child plays the nanny (enter_nanny), its child the
worker (apply, then the attack). Each child is killed with its parent, every wait has a deadline.
"""

import base64
import contextlib
import errno
import functools
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.codec import encode
from protocol.content import Access
from protocol.spec import IsolationMode, Layer, NetworkMode, WorkerLimits, WorkerPlan
from supervisor.router import BUS_NAME
from tests.attacks.attacked import attempted, packed
from worker import sandbox
from worker.sandbox import linux, namespaces
from worker.sandbox.facts import facts
from worker.sandbox.plan import Facts

DEADLINE_S = 60.0
ROOT = Path(__file__).parents[2]

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
    "own_uid": (*IN_EVERY_SHAPE, Layer.OWN_UID, Layer.PID_NS, Layer.MOUNT_NS),
    "own_uid_without_namespaces": (*IN_EVERY_SHAPE, Layer.OWN_UID),
}
# What a bridge of ours can come to: under root each peer has a uid, elsewhere none has.
OURS = tuple(name for name, layers in SHAPES.items() if (Layer.OWN_UID in layers) == (os.geteuid() == 0))
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


class Cage:
    """The supervisor process of one test run, and the workers that it has for us (supervised.py)."""

    def __init__(self, bus: Path) -> None:
        # What attacks are made of goes by name: the zygote imports it before it forks, for a worker sees no test.
        self.bus = bus / BUS_NAME
        modules = sorted(name for name in sys.modules if name.startswith("tests.attacks.test_"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.supervised", str(bus), *modules],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._count = 0

    def order(self, **order: object) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], DEADLINE_S)[0]:
            raise AssertionError(f"no answer in {DEADLINE_S} s: {order}")
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or b'{"gone": "the supervisor"}')
        return answer

    def start(self, plan: WorkerPlan) -> "Caged | Outcome":
        self._count += 1
        name = str(self._count)
        told = self.order(do="start", worker=name, plan=base64.b64encode(encode(plan)).decode())
        if "gone" in told:
            return Outcome(broke=f"no worker: {told['gone']}")
        return Caged(self, name, told)

    def kill(self) -> None:
        """SIGKILL, as a supervisor that dies without a last word."""
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._process.stdout.close()


class Caged:
    """One real worker. pids: worker, nanny, zygote, supervisor, as the supervisor sees them."""

    def __init__(self, cage: Cage, name: str, told: dict[str, Any]) -> None:
        self._cage = cage
        self._name = name
        self.missing: list[str] = told.pop("missing")
        self.pids: dict[str, int] = told

    def attempt(self, attack: Attack) -> Outcome:
        return Outcome(**self._cage.order(do="attack", worker=self._name, attack=packed(attack)))

    def end(self) -> None:
        """On return no process of it is left."""
        self._cage.order(do="end", worker=self._name)


@dataclass(frozen=True)
class Stage:
    """A bridge's home with two peers' folders in it; one of them is the attacker's. sibling: another peer's process.

    An attack that mentions its stage takes a copy along, which knows the names and can start nothing.
    """

    home: Path
    shape: str
    sibling: int
    cage: Cage | None = field(default=None, repr=False)
    shared: list[Caged] = field(default_factory=list, repr=False)
    token: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "token", self.home / "token")

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "cage": None, "shared": []}

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

    def worker(self) -> Caged:
        """This stage's own, with every layer of its shape."""
        if not self.shared:
            assert self.cage is not None
            started = self.cage.start(self.plan())
            if isinstance(started, Outcome):
                raise AssertionError(started.broke)
            self.shared.append(started)
        return self.shared[0]

    def inside(self, attack: Attack, plan: WorkerPlan | None = None) -> Outcome:
        """Let a real worker try: this stage's own, or, with a plan, one that is made for this attack."""
        if plan is None:
            return self.worker().attempt(attack)
        with self.another(plan) as worker:
            return worker.attempt(attack)

    @contextlib.contextmanager
    def another(self, plan: WorkerPlan) -> Iterator[Caged]:
        assert self.cage is not None
        started = self.cage.start(plan)
        if isinstance(started, Outcome):
            raise AssertionError(started.broke)
        try:
            yield started
        finally:
            started.end()


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


@functools.cache
def lacking(shape: str) -> str:
    """Why this machine cannot have a worker of this shape; found out without any code of the product's. "" = it can."""
    layers = set(SHAPES[shape])
    if Layer.LANDLOCK in layers and linux.landlock_abi() == 0:
        return "this kernel has no Landlock"
    if Layer.USER_NS in layers and outside(os.getpid, as_namespace_root=True).value is None:
        return "this machine gives ordinary users no user namespace"
    new = linux.CLONE_NEWNS | linux.CLONE_NEWPID
    if Layer.OWN_UID in layers and Layer.PID_NS in layers and outside(lambda: linux.unshare(new)).refused:
        return "this root may make no namespaces"
    return ""


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
    os.write(report, json.dumps(attempted(attack)).encode())
    os._exit(0)
