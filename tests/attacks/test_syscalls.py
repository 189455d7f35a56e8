"""A hostile worker goes for the kernel: calls that undo a sandbox, or that have a record of holes."""

import errno
import fcntl
import os
import platform
import pty
import resource
import signal
import subprocess
import threading

import pytest

from tests.attacks.sandboxed import Attack, Stage, outside
from worker.sandbox import linux, seccomp
from worker.sandbox.facts import facts

NEW_USER = linux.CLONE_NEWUSER


def call(name: str, *arguments: int | bytes | None) -> Attack:
    number = seccomp.NUMBERS[name][seccomp.ARCHITECTURES[facts().machine].column]

    def attack() -> int:
        return linux.syscall(-1 if number is None else number, *arguments)

    return attack


# Arguments that harm nobody: without a filter each works or fails by its arguments.
CALLS = {
    "setns": (-1, 0),
    "mount": (b"none", b"/", None, linux.MS_REC | linux.MS_PRIVATE, None),
    "umount2": (b"/nowhere", 0),
    "open_tree": (-1, b"nowhere", 0),
    "move_mount": (-1, b"", -1, b"", 0),
    "fsopen": (b"nosuchfs", 0),
    "mount_setattr": (-1, b"", 0, None, 0),
    "pivot_root": (b"/nowhere", b"/nowhere"),
    "chroot": (b"/",),
    "open_by_handle_at": (-1, None, 0),
    "io_uring_setup": (0, None),
    "userfaultfd": (1,),
    "bpf": (-1, None, 0),
    "perf_event_open": (None, 0, -1, -1, 0),
    "keyctl": (0, -3, 0),
    "add_key": (None, None, None, 0, 0),
    "request_key": (None, None, None, 0),
    "kcmp": (1 << 22, 1 << 22, 0, 0, 0),
    "process_madvise": (-1, None, 0, 0, 0),
    "move_pages": (0, 0, None, None, None, 0),
    "personality": (0xFFFFFFFF,),
    "memfd_secret": (0xFF,),
    "fanotify_init": (0x200, 0),  # FAN_REPORT_FID, for anybody
    "quotactl": (0xFFFFFF00, None, 0, None),
    "finit_module": (-1, b"", 0),
    "process_vm_writev": (1 << 22, None, 0, None, 0, 0),
    "unshare": (NEW_USER,),  # the last: outside it works, and takes the right to mount along
}


ROOTS_ALONE = {"bpf", "perf_event_open", "finit_module"}  # these ask for the real root before they look


def tried(calls: dict[str, tuple[int | bytes | None, ...]]) -> Attack:
    """All of them, one after the other: name and errno of each, 0 = it worked."""

    def attack() -> dict[str, int]:
        ends = {}
        for name, arguments in calls.items():
            try:
                call(name, *arguments)()
                ends[name] = 0
            except OSError as error:
                ends[name] = error.errno or errno.EIO
        return ends

    return attack


def test_no_call_that_steers_the_kernel_is_let_through(stage: Stage) -> None:
    assert stage.inside(tried(CALLS)).value == dict.fromkeys(CALLS, errno.EPERM)

    ends = outside(tried(CALLS), as_namespace_root=True).value
    assert isinstance(ends, dict)
    assert {name for name, code in ends.items() if code == errno.EPERM} <= ROOTS_ALONE


@pytest.mark.parametrize("flag", [linux.CLONE_NEWUSER, linux.CLONE_NEWNS, linux.CLONE_NEWPID, linux.CLONE_NEWNET])
def test_a_process_in_a_new_namespace_is_refused(stage: Stage, flag: int) -> None:
    def attack() -> None:
        pid = call("clone", flag | signal.SIGCHLD, None, None, None, None)()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    assert stage.inside(attack).code == errno.EPERM
    assert outside(attack, as_namespace_root=True).code is None


def test_clone3_is_absent_so_that_libraries_fall_back(stage: Stage) -> None:
    def start_a_thread() -> bool:
        ran = threading.Event()
        threading.Thread(target=ran.set).start()
        return ran.wait(10)

    assert stage.inside(call("clone3", None, 0)).code == errno.ENOSYS
    assert outside(call("clone3", None, 0)).code != errno.ENOSYS
    assert stage.inside(start_a_thread).value is True


def test_calls_newer_than_the_list_are_absent(stage: Stage) -> None:
    assert stage.inside(lambda: linux.syscall(seccomp.NEWEST_KNOWN + 1)).code == errno.ENOSYS


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 is x86_64's second table")
def test_the_second_table_of_x86_64_is_absent(stage: Stage) -> None:
    getpid_of_x32 = 0x40000000 | 39

    assert stage.inside(lambda: linux.syscall(getpid_of_x32)).code == errno.ENOSYS


@pytest.mark.parametrize("option", [linux.PR_SET_PDEATHSIG, linux.PR_SET_CHILD_SUBREAPER, 0x59616D61])
def test_who_ends_and_inherits_whom_is_not_for_a_worker_to_say(stage: Stage, option: int) -> None:
    assert stage.inside(lambda: linux.prctl(option, 0)).code == errno.EPERM
    assert outside(lambda: linux.prctl(option, 0)).code in {None, errno.EINVAL}


@pytest.mark.parametrize("request_code", [0x5412, 0x541C])
def test_nothing_is_typed_into_a_terminal(stage: Stage, request_code: int) -> None:
    def attack() -> None:
        fcntl.ioctl(0, request_code, b"\x00" * 8)

    def with_a_terminal() -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, 0x540E, 0)  # TIOCSCTTY
        fcntl.ioctl(theirs, request_code, b"x" * 8)

    assert stage.inside(attack).code == errno.EPERM
    assert outside(with_a_terminal).code != errno.EPERM or request_code == 0x541C or _tiocsti_is_off()


def _tiocsti_is_off() -> bool:
    try:
        with open("/proc/sys/dev/tty/legacy_tiocsti") as file:
            return file.read().strip() == "0"
    except OSError:
        return False


def test_a_new_program_stays_behind_the_filter(stage: Stage) -> None:
    def attack() -> str:
        return subprocess.check_output(["/bin/grep", "^Seccomp:", "/proc/self/status"], text=True).split()[1]

    assert stage.inside(attack).value == "2"
    assert outside(attack).value == "0"


def test_a_limit_that_was_lowered_is_not_raised_again(stage: Stage) -> None:
    def attack() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (10_000, 10_000))

    assert stage.inside(attack).broke or stage.inside(attack).refused
    assert outside(lambda: resource.getrlimit(resource.RLIMIT_NOFILE)).value != [256, 256]
