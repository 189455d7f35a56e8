"""A hostile worker goes for the memory of others: ptrace, process_vm_*, pidfd_getfd and their kin."""

import ctypes
import errno
import os

import pytest

from protocol.spec import Layer
from tests.attacks.sandboxed import Attack, Stage, outside
from worker.sandbox import linux, seccomp
from worker.sandbox.facts import facts

OUT_OF_REACH = {errno.ESRCH, errno.EPERM, errno.EACCES, errno.ENOENT}
PTRACE_ATTACH, PTRACE_DETACH = 16, 17


def number(name: str) -> int:
    found = seccomp.NUMBERS[name][seccomp.ARCHITECTURES[facts().machine].column]
    assert found is not None
    return found


def attach(pid: int) -> Attack:
    def attack() -> None:
        linux.syscall(number("ptrace"), PTRACE_ATTACH, pid, 0, 0)
        os.waitpid(pid, 0x40000000)  # __WALL
        linux.syscall(number("ptrace"), PTRACE_DETACH, pid, 0, 0)

    return attack


class Range(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def peek(pid: int) -> Attack:
    """One byte of our own image at the same address: the sibling was forked from us."""

    def attack() -> int:
        here, there = ctypes.create_string_buffer(1), ctypes.create_string_buffer(b"x")
        local, remote = Range(ctypes.addressof(here), 1), Range(ctypes.addressof(there), 1)
        address = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value
        remote.base = address
        return linux.syscall(number("process_vm_readv"), pid, local, 1, remote, 1, 0)

    return attack


def steal_descriptor(pid: int) -> Attack:
    return lambda: linux.syscall(number("pidfd_getfd"), linux.pidfd_open(pid), 0, 0)


ATTACKS = {"ptrace": attach, "process_vm_readv": peek, "pidfd_getfd": steal_descriptor}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_sibling_is_neither_traced_nor_read(stage: Stage, name: str) -> None:
    attack = ATTACKS[name](stage.sibling)

    assert stage.inside(attack).code in OUT_OF_REACH
    assert outside(attack).code is None


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("wall", [Layer.SECCOMP, Layer.LANDLOCK])
def test_either_wall_alone_keeps_a_sibling_closed(stage: Stage, name: str, wall: Layer) -> None:
    if not stage.has(wall):
        pytest.skip("this shape has no such wall")
    others = (Layer.SECCOMP, Layer.LANDLOCK, Layer.PID_NS, Layer.USER_NS, Layer.MOUNT_NS, Layer.OWN_UID)
    plan = stage.plan(without=tuple(layer for layer in others if layer is not wall))

    assert stage.inside(ATTACKS[name](stage.sibling), plan).code in OUT_OF_REACH


def test_a_worker_may_not_even_trace_itself_open(stage: Stage) -> None:
    def attack() -> None:
        linux.syscall(number("ptrace"), 0, 0, 0, 0)  # PTRACE_TRACEME

    assert stage.inside(attack).code == errno.EPERM
    assert outside(attack).code is None


def test_a_worker_holds_no_capability_and_gains_none_by_exec(stage: Stage) -> None:
    def attack() -> dict[str, str]:
        with open("/proc/self/status") as file:
            lines = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
        return {key: lines[key] for key in ("CapEff", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp")}

    told = stage.inside(attack).value

    none = "0" * 16
    assert told == {
        "CapEff": none,
        "CapPrm": none,
        "CapInh": none,
        "CapAmb": none,
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }
