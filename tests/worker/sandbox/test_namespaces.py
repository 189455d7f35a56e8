"""worker/sandbox/namespaces.py: the nanny's half; the worker's is under attack in tests/attacks."""

import os
import socket

import msgspec
import pytest

from protocol.content import Access
from protocol.spec import IsolationMode, Layer, NetworkMode, WorkerLimits, WorkerPlan
from tests.attacks.sandboxed import PEER_UID, outside
from worker.sandbox import namespaces
from worker.sandbox.facts import facts

PLAN = WorkerPlan(
    access=Access.CHAT,
    mode=IsolationMode.REQUIRED,
    network=NetworkMode.NONE,
    session_dir="/tmp",
    workspace="/tmp",
    media_dir="/tmp",
    read=(),
    write=(),
    execute=(),
    hide=(),
    limits=WorkerLimits(1 << 30, 64, 1 << 20, 256, 60),
    wanted=(Layer.USER_NS, Layer.PID_NS),
    required=(),
)


def links() -> list[str]:
    return [os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt", "net", "ipc")]


def entering(plan: WorkerPlan) -> list[object]:
    before = links()
    achieved = namespaces.enter_nanny(plan, facts())
    changed = [old != new for old, new in zip(before, links(), strict=True)]
    child = os.fork()
    if child == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    first = os.waitpid(child, 0)[1] == 0
    return [sorted(layer.value for layer in achieved), changed, first, os.getuid()]


@pytest.mark.parametrize("required", [(), PLAN.wanted])
def test_user_and_pid_namespace_are_new_and_mounts_and_network_the_old_ones(required: tuple[Layer, ...]) -> None:
    told = outside(lambda: entering(msgspec.structs.replace(PLAN, required=required))).value

    assert told == [["pid_ns", "user_ns"], [True, False, False, False], True, os.getuid()]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a pid namespace by itself")
def test_root_with_a_uid_for_the_peer_makes_no_user_namespace() -> None:
    plan = msgspec.structs.replace(PLAN, wanted=(*PLAN.wanted, Layer.OWN_UID), uid=PEER_UID, gid=PEER_UID)

    told = outside(lambda: entering(plan)).value

    assert told == [["pid_ns"], [False] * 4, True, 0]


def test_nothing_wanted_is_nothing_done() -> None:
    told = outside(lambda: entering(msgspec.structs.replace(PLAN, wanted=()))).value

    assert told == [[], [False] * 4, False, os.getuid()]


def test_a_nanny_keeps_no_capability_and_shows_nothing_of_itself() -> None:
    def body() -> list[str]:
        namespaces.enter_nanny(PLAN, facts())
        namespaces.leave_nanny(PLAN, facts())
        with open("/proc/self/status") as file:
            return [line.split()[1] for line in file if line.startswith(("CapEff", "CapPrm"))]

    assert outside(body).value == ["0" * 16] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to keep")
def test_a_nanny_of_root_keeps_what_its_tree_needs_and_no_other_right() -> None:
    plan = msgspec.structs.replace(PLAN, wanted=(Layer.OWN_UID,), uid=PEER_UID, gid=PEER_UID)

    def body() -> list[str]:
        namespaces.leave_nanny(plan, facts())
        with open("/proc/self/status") as file:
            return [line.split()[1] for line in file if line.startswith(("CapEff", "CapPrm"))]

    assert outside(body).value == ["0" * 14 + "22"] * 2  # CAP_KILL and CAP_DAC_OVERRIDE


def test_a_network_namespace_is_empty_and_its_loopback_is_up() -> None:
    def body() -> list[str]:
        assert namespaces.own_network(0) is None
        with open("/proc/net/dev") as file:
            names = [line.split(":")[0].strip() for line in file if ":" in line]
        with socket.socket() as server, socket.socket() as client:
            server.bind(("127.0.0.1", 0))
            server.listen()
            client.connect(server.getsockname())
        return names

    told = outside(body, as_namespace_root=True).value

    assert isinstance(told, list) and "lo" in told and not any(name.startswith(("eth", "en")) for name in told)


def test_a_network_namespace_with_a_gateway_has_a_listener_in_its_place() -> None:
    def body() -> bool:
        listener = namespaces.own_network(4711)
        assert listener is not None
        with socket.create_connection(("127.0.0.1", 4711)) as client:
            server, _ = listener.accept()
            server.sendall(b"reached")
            return client.recv(100) == b"reached" and listener.proto == socket.IPPROTO_TCP

    assert outside(body, as_namespace_root=True).value is True
