"""watch: what a nanny sees of a tree and does to it. A child of the test stands for the nanny.

Whole workers that go too far: tests/attacks/test_in_real_workers.py.
"""

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.spec import WorkerLimits
from protocol.to_supervisor import Limit
from tests.fakes.workers import alive
from worker.core import watch as core
from worker.sandbox import linux
from worker.watch import TreeWatch

MIB = 1024 * 1024
DEADLINE_S = 20.0
LINUX = Path("/proc/self/autogroup").exists()
pytestmark = pytest.mark.skipif(not LINUX, reason="there is nothing to look at without /proc")


@contextlib.contextmanager
def child(body: Callable[[], None]) -> Iterator[int]:
    """A process that does body() and then waits; ready when this returns. In the end it and its children are killed,
    also when the test has failed: a survivor would hold every pipe of the test process open.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os.write(writing, b"!")
            while True:
                time.sleep(60)
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"!"
        yield pid
    finally:
        os.close(reading)
        for one in (*children_of(pid), pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def children_of(pid: int) -> list[int]:
    try:
        return [int(below) for below in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def limits(*, memory_mb: int = 1024, processes: int = 4096) -> WorkerLimits:
    return WorkerLimits(memory_mb * MIB, processes, MIB, 64, 60)


def until_overrun(tree: TreeWatch) -> core.Overrun:
    """What it finds within the deadline, looking as often as it wants to."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        if (found := tree.look()) is not None:
            return found
        time.sleep(tree.wait_s())
    raise AssertionError("nothing was found")


def fill(size: int, flags: int) -> mmap.mmap:
    held = mmap.mmap(-1, size, flags=flags)
    for at in range(0, size, mmap.PAGESIZE):
        held[at] = 1
    return held


@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS])
def test_memory_is_seen_shared_or_not(flags: int) -> None:
    """RLIMIT_DATA knows nothing of the shared kind."""
    kept = []
    with child(lambda: kept.append(fill(80 * MIB, flags))) as pid:
        found = until_overrun(TreeWatch(pid, limits(memory_mb=64)))

    assert found.limit is Limit.MEMORY


def test_what_forks_share_is_weighed_once() -> None:
    held = fill(80 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    once_mb = linux.weight_bytes(os.getpid()) // MIB  # this process itself has grown by what the suite did before

    def fork_three() -> None:
        for _ in range(3):
            if os.fork() == 0:
                while True:
                    time.sleep(60)

    with child(fork_three) as pid:
        tree = TreeWatch(pid, limits(memory_mb=2 * once_mb))  # each for itself, the four would take twice that

        assert tree.look() is None
    held.close()


def test_processes_are_counted_with_their_children() -> None:
    def fork_twelve() -> None:
        for _ in range(12):
            if os.fork() == 0:
                signal.pause()

    with child(fork_twelve) as pid:
        found = until_overrun(TreeWatch(pid, limits(processes=4)))

    assert found.limit is Limit.PROCESSES


def test_a_session_of_its_own_gets_the_smallest_share_of_the_processor() -> None:
    def lead_a_session() -> None:
        if os.fork() == 0:
            os.setsid()
            signal.pause()

    with child(lead_a_session) as pid:
        tree = TreeWatch(pid, limits())
        (below,) = children_of(pid)
        before = Path(f"/proc/{pid}/autogroup").read_text()  # empty where nobody ever led a session of the kernel's
        until = time.monotonic() + DEADLINE_S
        while "nice 19" not in Path(f"/proc/{below}/autogroup").read_text():
            assert time.monotonic() < until
            assert tree.look() is None
            time.sleep(0.02)

        assert Path(f"/proc/{pid}/autogroup").read_text() == before


def test_what_goes_on_spinning_after_its_turn_is_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "LEFT_S", 0.5)

    def spin() -> None:
        if os.fork() == 0:
            while True:
                pass

    with child(spin) as pid:
        tree = TreeWatch(pid, limits())
        (below,) = children_of(pid)
        until = time.monotonic() + DEADLINE_S
        while alive(below):
            assert time.monotonic() < until
            assert tree.look() is None
            time.sleep(0.05)

        assert alive(pid)
