"""A hostile worker goes for processes that are not its own: the supervisor, its nanny, another peer's worker."""

import errno
import fcntl
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.spec import Layer
from tests.attacks.sandboxed import Attack, Stage, outside
from worker.sandbox import linux

OUT_OF_REACH = {errno.ESRCH, errno.EPERM, errno.EACCES, errno.ENOENT, errno.EINVAL}

_PIDFD_SEND_SIGNAL = 424
_TGKILL = {"x86_64": 234, "aarch64": 131}[os.uname().machine]


def kill(pid: int) -> object:
    return os.kill(pid, 0)


def tgkill(pid: int) -> object:
    return linux.syscall(_TGKILL, pid, pid, 0)


def pidfd_send_signal(pid: int) -> object:
    return linux.syscall(_PIDFD_SEND_SIGNAL, linux.pidfd_open(pid), 0, None, 0)


@pytest.mark.parametrize("how", [kill, tgkill, pidfd_send_signal])
@pytest.mark.parametrize("whose", ["sibling", "supervisor", "zygote", "nanny"])
def test_no_signal_reaches_a_process_outside(stage: Stage, how: Callable[[int], object], whose: str) -> None:
    if not (stage.has(Layer.PID_NS) or stage.has(Layer.OWN_UID)) and linux.landlock_abi() < 6:
        pytest.skip("below Landlock ABI 6 same-uid signals are open without namespaces: level medium")
    target = {"sibling": stage.sibling, **stage.worker().pids}[whose]

    def attack() -> None:
        how(target)

    assert stage.inside(attack).code in OUT_OF_REACH
    assert outside(attack).code is None


def test_nobody_above_a_worker_has_an_id_that_it_could_use(stage: Stage) -> None:
    parent = stage.inside(os.getppid).value

    assert parent == (0 if stage.has(Layer.PID_NS) else stage.worker().pids["nanny"])


def test_a_signal_to_everybody_reaches_only_our_own(stage: Stage) -> None:
    if not (stage.has(Layer.PID_NS) or stage.has(Layer.OWN_UID)):
        pytest.skip("without namespaces this would try every process of the test's own user")

    def attack() -> None:
        os.kill(-1, signal.SIGURG)

    outcome = stage.inside(attack)

    assert outcome.code in {None, errno.ESRCH, errno.EPERM}
    os.kill(stage.sibling, 0)


def test_a_signal_to_the_own_group_does_not_reach_the_nanny(stage: Stage) -> None:
    """It would die of it, and its worker with it."""

    def attack() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(0, signal.SIGTERM)

    assert str(stage.inside(attack)) == "worked: None"
    assert stage.inside(os.getpid).value, "the worker answers through its nanny still"


def test_no_descriptor_makes_the_kernel_signal_another(stage: Stage) -> None:
    """F_SETOWN + O_ASYNC: SIGIO (or F_SETSIG's choice) to the owner, sent by the kernel."""
    received: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: received.append(number))
    target = os.getpid()

    def attack() -> None:
        reading, writing = os.pipe()
        fcntl.fcntl(reading, fcntl.F_SETOWN, target)
        fcntl.fcntl(reading, 10, signal.SIGUSR2)  # F_SETSIG
        fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC)
        os.write(writing, b"!")

    try:
        stage.inside(attack)
        assert received == []

        outside(attack)
        assert signal.SIGUSR2 in received
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("name", ["environ", "mem", "maps", "fd", "cwd", "root"])
def test_the_inside_of_another_process_stays_closed(stage: Stage, name: str) -> None:
    path = f"/proc/{stage.sibling}/{name}"

    def attack() -> bool:
        if name in ("cwd", "root"):
            return bool(os.readlink(path))
        if name == "fd":  # the numbers alone are anybody's of the same user; what they are is not
            return bool(os.readlink(f"{path}/0"))
        with open(path, "rb") as file:
            return file.read(0) == b""

    assert stage.inside(attack).code in OUT_OF_REACH
    assert outside(attack).value is True


def test_the_supervisors_and_the_nannys_ids_are_not_to_be_seen(stage: Stage) -> None:
    if not stage.has(Layer.PID_NS):
        pytest.skip("process ids are hidden by a pid namespace")

    def attack() -> list[str]:
        return [name for name in os.listdir("/proc") if name.isdigit()]

    assert stage.inside(attack).value == ["1"]


def limits_of(pid: int) -> Attack:
    return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64)) and None


def test_the_limits_of_a_sibling_stay(stage: Stage) -> None:
    limits = Path(f"/proc/{stage.sibling}/limits")
    before = limits.read_text()

    assert stage.inside(limits_of(stage.sibling)).code in OUT_OF_REACH
    assert limits.read_text() == before
    assert outside(limits_of(stage.sibling), uid=stage.siblings_uid).code is None
    assert limits.read_text() != before


def test_the_niceness_of_a_sibling_stays(stage: Stage) -> None:
    def attack() -> None:
        os.setpriority(os.PRIO_PROCESS, stage.sibling, 5)

    assert stage.inside(attack).code in OUT_OF_REACH
    assert os.getpriority(os.PRIO_PROCESS, stage.sibling) == 0
    assert outside(attack).code is None


def test_the_niceness_of_a_whole_user_stays(stage: Stage) -> None:
    def attack() -> None:
        os.setpriority(os.PRIO_USER, 0, 7)

    assert stage.inside(attack).code in OUT_OF_REACH
    assert os.getpriority(os.PRIO_PROCESS, stage.sibling) == 0


def test_the_processors_of_a_sibling_stay(stage: Stage) -> None:
    before = os.sched_getaffinity(stage.sibling)
    if len(before) < 2:
        pytest.skip("one processor: nothing to take away")

    def attack() -> None:
        os.sched_setaffinity(stage.sibling, {min(before)})

    stage.inside(attack)  # pretends success

    assert os.sched_getaffinity(stage.sibling) == before
    assert outside(attack).code is None
    assert os.sched_getaffinity(stage.sibling) == {min(before)}


def test_a_sibling_is_not_offered_to_the_out_of_memory_killer(stage: Stage) -> None:
    def attack() -> None:
        with open(f"/proc/{stage.sibling}/oom_score_adj", "w") as file:
            file.write("1000")

    assert stage.inside(attack).code in OUT_OF_REACH | {errno.EROFS}
    assert outside(attack).code is None
