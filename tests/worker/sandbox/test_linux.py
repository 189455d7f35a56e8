"""worker/sandbox/linux.py: raw calls answer with the kernel's errno; what is absent answers ENOSYS."""

import errno
import json
import os
import platform
import signal
import socket
import struct

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


def test_a_call_that_waits_for_an_answer_gets_a_descriptor_or_a_refusal() -> None:
    """A nanny's side of it, tried on getpriority()."""
    if not linux.can_install_descriptors():
        pytest.skip("seccomp cannot hand descriptors over here")
    getpriority = {"x86_64": 140, "aarch64": 141}[platform.machine()]
    number, asked = (0x20, 0, 0, 0), (0x15, 0, 1, getpriority)
    asks = b"".join(struct.pack("=HBBI", *one) for one in (number, asked, (6, 0, 0, 0x7FC00000), (6, 0, 0, 0x7FFF0000)))

    def body() -> list[object]:
        ours, theirs = socket.socketpair()
        place = os.open("/dev/null", os.O_RDONLY)
        child = os.fork()
        if child == 0:
            linux.no_new_privs()
            listener = linux.seccomp_filter_with_listener(asks)
            socket.send_fds(theirs, [b"!"], [listener])
            os.close(listener)
            os.getpriority(os.PRIO_PROCESS, 0)
            told = [os.read(place, 100).decode()]
            try:
                os.getpriority(os.PRIO_PROCESS, 0)
            except OSError as error:
                told.append(errno.errorcode[error.errno])
            theirs.sendall(json.dumps(told).encode())
            os._exit(0)
        _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
        reading, writing = os.pipe()
        os.write(writing, b"installed")
        first = linux.receive_notification(listener)
        linux.install_descriptor(listener, first.id, reading, place)
        linux.answer_notification(listener, first.id, 0)
        second = linux.receive_notification(listener)
        linux.answer_notification(listener, second.id, errno.EBADF)
        found = json.loads(ours.recv(1000))
        os.waitpid(child, 0)
        return [first.pid == child, second.arguments[:2] == (os.PRIO_PROCESS, 0), *found]

    assert outside(body).value == [True, True, "installed", "EBADF"]
