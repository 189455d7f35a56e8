"""zygote: its orders, its cleanliness, its end. Driven through its socket, as a supervisor does."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.codec import encode, frame
from protocol.spec import FromZygote, Preload, Reaped, Spawn, Spawned, from_zygote
from tests.fakes import workers


class Driven:
    def __init__(self, parent: int | None = None) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(workers.DEADLINE_S)
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-c",
                    f"import sys; sys.path.insert(0, {workers.ROOT!r}); {workers.entry('obedient')}",
                    str(theirs.fileno()),
                    str(os.getpid() if parent is None else parent),
                ],
                pass_fds=[theirs.fileno()],
                env={"PATH": "/usr/bin:/bin"},
            )

    def hear(self) -> tuple[FromZygote, int | None]:
        packet, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 1)
        return from_zygote.decode(packet), descriptors[0] if descriptors else None

    def spawn(self, folder: Path) -> tuple[int, int, socket.socket, int]:
        """pid, pidfd, our end of the life socket, the spec pipe with part one in it."""
        life, their_life = socket.socketpair()
        their_spec, spec = os.pipe()
        os.write(spec, frame(encode(workers.plan(folder))))
        socket.send_fds(self.control, [encode(Spawn())], [their_life.fileno(), their_spec])
        their_life.close()
        os.close(their_spec)
        spawned, pidfd = self.hear()
        assert isinstance(spawned, Spawned)
        assert pidfd is not None
        return spawned.pid, pidfd, life, spec


@pytest.fixture
def zygote() -> Iterator[Driven]:
    driven = Driven()
    yield driven
    driven.control.close()
    driven.process.wait(workers.DEADLINE_S)


def readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], workers.DEADLINE_S)[0])


def test_it_forks_a_nanny_and_tells_of_its_end_once_it_is_reaped(zygote: Driven, tmp_path: Path) -> None:
    pid, pidfd, life, spec = zygote.spawn(tmp_path)

    os.close(spec)
    life.close()

    assert readable(pidfd)
    assert zygote.hear() == (Reaped(pid, 1), None)
    assert not Path(f"/proc/{pid}").exists()
    os.close(pidfd)


def test_it_is_one_clean_thread_that_nobody_may_look_into(zygote: Driven, tmp_path: Path) -> None:
    _, pidfd, life, spec = zygote.spawn(tmp_path)  # by then it is up
    own = Path(f"/proc/{zygote.process.pid}")

    assert "Threads:\t1\n" in (own / "status").read_text()
    assert (own / "environ").stat().st_uid == 0  # not dumpable: nobody of its own user may look
    with contextlib.suppress(PermissionError):
        names = {entry.partition(b"=")[0] for entry in (own / "environ").read_bytes().split(b"\0")}
        assert names <= {b"PATH", b""}
    os.close(spec)
    os.close(pidfd)
    life.close()


def test_the_end_of_its_socket_ends_it_and_leaves_its_nannies(zygote: Driven, tmp_path: Path) -> None:
    pid, pidfd, life, spec = zygote.spawn(tmp_path)

    zygote.control.close()

    assert zygote.process.wait(workers.DEADLINE_S) == 0
    assert workers.alive(pid)
    os.close(spec)
    life.close()
    assert readable(pidfd)
    os.close(pidfd)


def test_what_a_killed_nanny_leaves_behind_is_gone_before_its_end_is_told(zygote: Driven, tmp_path: Path) -> None:
    pid, pidfd, life, spec = zygote.spawn(tmp_path)
    tree: list[int] = []
    while not tree:
        tree = workers.below(pid)

    os.kill(pid, signal.SIGKILL)

    assert zygote.hear() == (Reaped(pid, -signal.SIGKILL), None)
    assert [one for one in tree if workers.alive(one)] == []
    os.close(spec)
    os.close(pidfd)
    life.close()


def test_a_preload_is_shared_and_one_that_cannot_be_imported_is_left_to_the_worker(
    zygote: Driven, tmp_path: Path
) -> None:
    zygote.control.send(encode(Preload("echo")))
    zygote.control.send(encode(Preload("no such host")))

    pid, pidfd, life, spec = zygote.spawn(tmp_path)

    assert workers.alive(pid)
    os.close(spec)
    os.close(pidfd)
    life.close()


def test_interrupts_of_the_terminal_are_none_of_its_business(zygote: Driven, tmp_path: Path) -> None:
    _, pidfd, life, spec = zygote.spawn(tmp_path)

    zygote.process.send_signal(signal.SIGINT)
    _, second, other_life, other_spec = zygote.spawn(tmp_path)

    for descriptor in (spec, pidfd, second, other_spec):
        os.close(descriptor)
    life.close()
    other_life.close()


def test_it_does_not_outlive_a_supervisor_that_died_before_it_was_up() -> None:
    orphan = Driven(parent=1)

    assert orphan.process.wait(workers.DEADLINE_S) == 1
    orphan.control.close()
