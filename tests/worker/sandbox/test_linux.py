"""worker/sandbox/linux.py: raw calls answer with the kernel's errno; what is absent answers ENOSYS."""

import errno
import os
import signal

import pytest

from tests.attacks.sandboxed import outside
from worker.sandbox import linux


def test_a_call_without_a_number_is_absent() -> None:
    with pytest.raises(OSError) as failed:
        linux.syscall(-1)

    assert failed.value.errno == errno.ENOSYS


def test_a_failing_call_raises_the_kernels_errno() -> None:
    with pytest.raises(OSError) as failed:
        linux.umount2("/nowhere-at-all")

    assert failed.value.errno in {errno.ENOENT, errno.EPERM}


def test_a_negative_argument_reaches_the_kernel_as_a_whole_register() -> None:
    with pytest.raises(OSError) as failed:
        linux.restrict_tree(-1, linux.MOUNT_ATTR_RDONLY)

    assert failed.value.errno in {errno.EBADF, errno.EPERM}


def test_descendants_are_listed_down_to_the_grandchildren() -> None:
    def body() -> int:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                os.write(writing, b"!")
            signal.pause()
        os.read(reading, 1)
        found = list(linux.descendants(os.getpid()))
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return len(found)

    assert outside(body).value == 2


def test_capabilities_are_gone_for_good_but_for_those_kept() -> None:
    def body() -> str:
        linux.drop_capabilities(keep=1 << 5)
        with open("/proc/self/status") as file:
            return next(line.split()[1] for line in file if line.startswith("CapPrm"))

    assert outside(body, as_namespace_root=True).value == "0" * 14 + "20"


def test_a_pidfd_of_a_process_that_never_was_is_refused() -> None:
    with pytest.raises(OSError):
        linux.pidfd_open(2**22 + 1)
