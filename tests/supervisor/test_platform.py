"""The supervisor's own calls into the system."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from supervisor import platform

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.skipif(not platform.LINUX, reason="Linux only: /proc")
def test_a_hardened_process_dumps_no_core_and_may_open_many_files() -> None:
    code = (
        "import ctypes, resource; from supervisor import platform; platform.harden();"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), *resource.getrlimit(resource.RLIMIT_CORE))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)

    assert done.stdout.split() == ["0", "0", "0"]


def test_the_limit_of_open_files_rises_to_what_the_operator_leaves_and_never_falls() -> None:
    code = (
        "import resource, sys; from supervisor import platform;"
        "soft, hard = int(sys.argv[1]), int(sys.argv[2]);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)); platform.harden();"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )

    for soft, hard, left in ((128, 512, ["512", "512"]), (300, 300, ["300", "300"])):
        done = subprocess.run(
            [sys.executable, "-c", code, str(soft), str(hard)], capture_output=True, text=True, cwd=ROOT, check=True
        )
        assert done.stdout.split() == left


def test_a_start_time_tells_a_process_from_a_later_one_of_the_same_pid() -> None:
    assert platform.start_time(os.getpid()) == platform.start_time(os.getpid())
    assert platform.start_time(2**30) == ""


def test_free_space_is_told_in_bytes(tmp_path: Path) -> None:
    assert platform.free_bytes(str(tmp_path)) > 0


@pytest.mark.skipif(not platform.LINUX, reason="there is no /proc")
def test_a_tree_is_all_below_a_process_with_what_it_wrote_and_holds(tmp_path: Path) -> None:
    script = f"import os; open({str(tmp_path / 'file')!r}, 'wb').write(b'x' * (4 << 20)); input()"
    parent = subprocess.Popen(["sh", "-c", 'python3 -c "$0"; true', script], stdin=subprocess.PIPE)
    until = time.monotonic() + 20
    try:
        while (platform.tree_wrote_bytes(parent.pid) or 0) < 4 << 20:
            assert time.monotonic() < until
            time.sleep(0.01)

        assert len(platform.tree_of(parent.pid)) == 2
        assert platform.tree_rss_bytes(parent.pid) > platform.tree_bytes(parent.pid) > 1 << 20
    finally:
        parent.communicate(b"\n")


def test_the_machine_has_memory() -> None:
    assert platform.memory_bytes() > 64 << 20


def test_a_helper_dies_with_its_parent() -> None:
    """A parent that is killed has no chance to say so."""
    helper = "from supervisor import platform; import os, time; platform.die_with_parent(); print(os.getpid(), flush=True); time.sleep(60)"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {helper!r}]).wait()"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    helped = psutil.Process(pid)

    parent.kill()
    parent.wait()

    end = time.monotonic() + 20  # somebody else's child by then: nothing but a look tells
    while helped.is_running() and helped.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.005)
    assert not helped.is_running() or helped.status() == psutil.STATUS_ZOMBIE
