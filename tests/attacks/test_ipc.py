"""A hostile worker goes for what processes share beside files: shared memory, queues, semaphores, keys, names."""

import errno
import os
import socket
import subprocess
from pathlib import Path

import pytest

from protocol.spec import Layer
from tests.attacks.sandboxed import Attack, Stage, outside
from worker.sandbox import linux, seccomp
from worker.sandbox.facts import facts

UNREACHABLE = {errno.ENOENT, errno.EACCES, errno.EPERM}
IPC_PRIVATE, IPC_CREAT, IPC_RMID = 0, 0o1000, 0


def call(name: str, *arguments: int | bytes | None) -> int:
    number = seccomp.NUMBERS[name][seccomp.ARCHITECTURES[facts().machine].column]
    assert number is not None
    return linux.syscall(number, *arguments)


def shared_memory() -> None:
    call("shmctl", call("shmget", IPC_PRIVATE, 4096, IPC_CREAT | 0o600), IPC_RMID, None)


def semaphores() -> None:
    call("semctl", call("semget", IPC_PRIVATE, 1, IPC_CREAT | 0o600), 0, IPC_RMID, None)


def message_queue() -> None:
    call("msgctl", call("msgget", IPC_PRIVATE, IPC_CREAT | 0o600), IPC_RMID, None)


def posix_queue() -> None:
    name = f"attacked-{os.getpid()}".encode()
    os.close(call("mq_open", name, os.O_RDWR | os.O_CREAT, 0o600, None))
    call("mq_unlink", name)


def session_keyring() -> None:
    call("keyctl", 0, -3, 0)  # KEYCTL_GET_KEYRING_ID of the session keyring: inherited, shared by the whole login


@pytest.mark.parametrize("attack", [shared_memory, semaphores, message_queue, posix_queue])
def test_no_queue_and_no_shared_memory_outside_of_files(stage: Stage, attack: Attack) -> None:
    assert stage.inside(attack).code == errno.EPERM
    assert outside(attack).code in {None, errno.ENOSYS}


def test_no_keyring(stage: Stage) -> None:
    assert stage.inside(session_keyring).code == errno.EPERM
    assert outside(session_keyring).code != errno.EPERM


def test_the_shared_memory_of_another_is_neither_seen_nor_left_for_others(stage: Stage) -> None:
    theirs = Path(f"/dev/shm/attacked-{os.getpid()}")
    ours = Path(f"/dev/shm/planted-{os.getpid()}")
    theirs.write_text("secret")
    try:
        assert stage.inside(lambda: theirs.read_text()).code in UNREACHABLE
        assert outside(lambda: theirs.read_text()).value == "secret"

        stage.inside(lambda: ours.write_text("x"))
        assert not ours.exists()
    finally:
        theirs.unlink()
        ours.unlink(missing_ok=True)


def test_the_common_folder_for_temporary_files_is_not_shared(stage: Stage) -> None:
    theirs, planted = Path(f"/tmp/attacked-{os.getpid()}"), Path(f"/tmp/planted-{os.getpid()}")
    theirs.write_text("secret")
    try:
        assert stage.inside(lambda: theirs.read_text()).code in UNREACHABLE
        stage.inside(lambda: planted.write_text("x"))
        assert not planted.exists()
    finally:
        theirs.unlink()
        planted.unlink(missing_ok=True)


def test_an_agent_starts_with_three_descriptors_of_nothing_and_its_link(stage: Stage) -> None:
    def attack() -> list[str]:
        names = sorted(os.listdir("/proc/self/fd"), key=int)
        # The listing's own descriptor is gone by now.
        return [os.readlink(path) for path in (f"/proc/self/fd/{name}" for name in names) if os.path.lexists(path)]

    told = stage.inside(attack).value
    program = stage.inside(lambda: subprocess.check_output(["/bin/ls", "/proc/self/fd"], text=True).split()).value

    assert isinstance(told, list)
    assert told[:3] == ["/dev/null"] * 3
    kinds = sorted(one.partition(":")[0] for one in told[3:])
    assert kinds == ["anon_inode", "socket", "socket", "socket"], "the link, and the event loop's own epoll and pair"
    assert program == ["0", "1", "2", "3"], "what it starts has the three, and 3 is the listing itself"


def test_the_environment_is_made_new(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")  # the supervisor's own canaries: test_canaries.py

    told = stage.inside(lambda: dict(os.environ)).value

    assert isinstance(told, dict)
    assert "API_KEY" not in told and "secret" not in str(told)
    assert told["HOME"] == str(stage.folder("sessions"))
    assert outside(lambda: os.environ["API_KEY"]).value == "secret"


def test_inotify_says_too_many_and_takes_none_from_the_supervisor(stage: Stage) -> None:
    def attack() -> None:
        os.close(call("inotify_init1", 0))

    assert stage.inside(attack).code == errno.EMFILE
    assert outside(attack).code is None


def test_the_host_name_stays(stage: Stage) -> None:
    before = socket.gethostname()

    assert stage.inside(lambda: socket.sethostname("planted")).code == errno.EPERM
    assert socket.gethostname() == before
    assert stage.has(Layer.SECCOMP)
