"""A hostile worker goes for the machine: processes without end, memory, descriptors, disk.

Each of these is bounded by a limit of its own, and runs only where the tree has a pid namespace or a uid of its own.
"""

import errno
import mmap
import os
import resource
import signal
import time
from pathlib import Path

import msgspec
import pytest

from protocol.spec import Layer, WorkerLimits
from tests.attacks.sandboxed import Stage

LIMITS = WorkerLimits(memory_bytes=512 << 20, processes=24, file_bytes=16 << 20, open_files=64, cpu_s=30)


def test_a_fork_loop_ends_at_the_limit_and_the_whole_tree_dies_at_once(stage: Stage) -> None:
    own_namespace = stage.has(Layer.USER_NS) and os.geteuid() != 0
    if not stage.has(Layer.PID_NS) or not (own_namespace or stage.has(Layer.OWN_UID)):
        pytest.skip("never as plain root, and never with everybody's count of processes")

    def attack() -> int:
        count = 0
        while count < 200:
            try:
                pid = os.fork()
            except BlockingIOError:
                return count
            if pid == 0:
                signal.pause()
            count += 1
        return count

    # Of a worker with another uid the nanny cannot see what its forks share, and counts it in each: not this test's limit.
    limits = msgspec.structs.replace(LIMITS, memory_bytes=8 << 30)
    started = time.monotonic()
    outcome = stage.inside(attack, stage.plan(limits=limits))

    assert isinstance(outcome.value, int) and 10 <= outcome.value <= LIMITS.processes + 8
    assert time.monotonic() - started < 10


def test_memory_ends_at_the_limit_of_the_process(stage: Stage) -> None:
    def attack() -> None:
        mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    assert stage.inside(attack, stage.plan(limits=LIMITS)).code == errno.ENOMEM


def test_descriptors_end_at_the_limit(stage: Stage) -> None:
    def attack() -> None:
        for _ in range(5000):
            os.dup(0)

    assert stage.inside(attack, stage.plan(limits=LIMITS)).code == errno.EMFILE


def test_one_file_ends_at_the_limit(stage: Stage) -> None:
    def attack() -> None:
        with open(stage.workspace / "big", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * (1 << 20))

    assert stage.inside(attack, stage.plan(limits=LIMITS)).code == errno.EFBIG
    assert (stage.workspace / "big").stat().st_size <= LIMITS.file_bytes


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_files_on_memory_end_at_the_size_of_their_folder(stage: Stage, folder: str) -> None:
    if not stage.has(Layer.MOUNT_NS):
        pytest.skip("without mounts of its own a worker has no such folder")

    def attack() -> None:
        for number in range(100):
            Path(folder, str(number)).write_bytes(b"x" * (4 << 20))

    assert stage.inside(attack, stage.plan(limits=LIMITS)).code == errno.ENOSPC


def test_a_core_is_never_written(stage: Stage) -> None:
    assert stage.inside(lambda: resource.getrlimit(resource.RLIMIT_CORE)).value == [0, 0]


def test_without_namespace_or_uid_the_users_other_processes_do_not_count(stage: Stage) -> None:
    if stage.shape != "without_namespaces":
        pytest.skip("only there is RLIMIT_NPROC everybody's")

    assert stage.inside(lambda: resource.getrlimit(resource.RLIMIT_NPROC)).value != [LIMITS.processes] * 2
