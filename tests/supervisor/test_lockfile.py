"""Locks, held by real processes."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from protocol.ids import AccountId
from supervisor.clock import SystemClock
from supervisor.lockfile import AccountLock, AlreadyRunning, HomeLock, Kept, LockUnusable, LockWatch

ROOT = Path(__file__).resolve().parent.parent.parent

HOLDER = """
import sys
import threading
from pathlib import Path
from supervisor.lockfile import AlreadyRunning, HomeLock
try:
    lock = HomeLock(Path(sys.argv[1]))
    lock.acquire()
except AlreadyRunning as held:
    print("refused", held.pid, flush=True)
    sys.exit(3)
print("held", flush=True)
sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "lock"


def test_a_second_holder_is_refused_and_told_who_holds_it(path: Path) -> None:
    with holder(path) as first:
        assert first_line(first) == "held"

        with pytest.raises(AlreadyRunning) as refused:
            HomeLock(path).acquire()

        assert refused.value.pid == first.pid


def test_b012_of_many_starts_in_one_moment_exactly_one_wins(path: Path) -> None:
    processes = [holder(path) for _ in range(12)]
    answers = [first_line(p).split()[0] for p in processes]
    for process in processes:
        process.communicate()

    assert sorted(answers) == ["held"] + ["refused"] * 11


CROWD = """
import os, sys
from pathlib import Path
from supervisor.lockfile import AlreadyRunning, HomeLock

gun_read, gun_write = os.pipe()
over_read, over_write = os.pipe()
children, answers = [], []
for number in range(100):
    answer_read, answer_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(gun_write)
        os.close(over_write)
        os.read(gun_read, 1)  # all at once
        try:
            lock = HomeLock(Path(sys.argv[1]))
            lock.acquire()
            os.write(answer_write, b"held")
        except AlreadyRunning:
            os.write(answer_write, b"refused")
        os.read(over_read, 1)  # nobody lets go before all have tried
        os._exit(0)
    os.close(answer_write)
    children.append(pid)
    answers.append(answer_read)
os.close(gun_read)
os.close(gun_write)
words = [os.read(answer, 16).decode() for answer in answers]
os.close(over_write)
for pid in children:
    os.waitpid(pid, 0)
print(words.count("held"), words.count("refused"))
"""


def test_b012_of_a_hundred_starts_in_the_same_instant_exactly_one_wins(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CROWD, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=90
    )

    assert (done.stdout.split(), done.stderr) == (["1", "99"], "")


def test_b012_threads_of_one_process_exclude_each_other_a_hundred_times(path: Path) -> None:
    for _ in range(100):
        with HomeLock(path), pytest.raises(AlreadyRunning):
            HomeLock(path).acquire()


def test_b012_the_lock_is_not_inherited_by_children(path: Path) -> None:
    with HomeLock(path):
        child = subprocess.Popen(
            [sys.executable, "-c", "print('up', flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            close_fds=False,
        )
        assert first_line(child) == "up"
    try:
        with HomeLock(path):
            pass
    finally:
        child.communicate("\n")


def test_b012_a_file_replaced_under_us_is_noticed(path: Path) -> None:
    first = HomeLock(path)
    first.acquire()
    path.unlink()

    second = HomeLock(path)
    second.acquire()  # the old inode is nobody's lock any more

    assert first.held and second.held
    with pytest.raises(AlreadyRunning):
        HomeLock(path).acquire()


def test_b012_a_file_removed_under_a_holder_is_noticed_and_locked_anew(path: Path) -> None:
    lock = HomeLock(path)
    with lock:
        assert lock.keep() is Kept.OURS

        path.unlink()

        assert lock.keep() is Kept.TAKEN_AGAIN
        assert lock.keep() is Kept.OURS
        with pytest.raises(AlreadyRunning):
            HomeLock(path).acquire()


def test_b012_a_file_replaced_by_another_bridge_is_a_problem_named_once_until_that_one_ends(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock, other = HomeLock(path), HomeLock(path)
    watch = LockWatch(lambda: [lock], SystemClock())
    with lock:
        path.unlink()
        with other:
            watch.look()
            watch.look()
            problems = watch.problems
        watch.look()

        assert [line.startswith(f"{path}: the lock was replaced") for line in problems] == [True]
        assert [r.message.split()[0] for r in caplog.records] == ["lock_lost", "lock_taken_again"]
        assert watch.problems == []
        assert lock.keep() is Kept.OURS


def test_a_lock_that_is_not_held_is_nobodys_problem(path: Path) -> None:
    assert HomeLock(path).keep() is Kept.OURS


def test_locks_are_looked_after_every_half_minute(path: Path) -> None:
    class Clock:
        slept: list[float] = []

        def now(self) -> float:
            return 100.0

        def wall(self) -> float:
            return 0.0

        async def sleep_until(self, at: float) -> None:
            self.slept.append(at)
            if len(self.slept) == 3:
                raise TimeoutError

    looked = []
    watch = LockWatch(lambda: looked.append(1) or [], Clock())  # type: ignore[func-returns-value]

    with pytest.raises(TimeoutError):
        asyncio.run(watch.run())

    assert (len(looked), Clock.slept) == (2, [130.0] * 3)


@pytest.mark.parametrize(
    "left", ["1 12345", f"{os.getpid()} 1", "", "garbage\x00"], ids=["a foreign pid", "our own pid", "empty", "garbage"]
)
def test_b051_b072_b094_what_a_dead_holder_left_behind_holds_nothing(path: Path, left: str) -> None:
    path.parent.mkdir()
    path.write_text(left)

    with HomeLock(path):
        assert path.read_text().split()[0] == str(os.getpid())


def test_b051_a_suspended_holder_still_holds_it(path: Path) -> None:
    with holder(path) as first:
        assert first_line(first) == "held"
        first.send_signal(signal.SIGSTOP)
        os.utime(path, (0, 0))
        try:
            with pytest.raises(AlreadyRunning):
                HomeLock(path).acquire()
        finally:
            first.send_signal(signal.SIGCONT)


def test_b094_a_killed_holder_frees_it_at_once(path: Path) -> None:
    for _ in range(3):
        with holder(path) as first:
            assert first_line(first) == "held"
            first.kill()
            first.wait()
        with HomeLock(path):
            pass


def test_b072_a_folder_in_its_place_is_an_error_that_names_it(path: Path) -> None:
    path.mkdir(parents=True)

    with pytest.raises(LockUnusable, match=str(path)):
        HomeLock(path).acquire()


@pytest.mark.parametrize("kind", ["link", "fifo", "file as parent"])
def test_b072_whatever_else_stands_in_its_place_is_an_error_too(path: Path, kind: str) -> None:
    if kind == "file as parent":
        path.parent.touch()
    else:
        path.parent.mkdir()
        if kind == "link":
            path.symlink_to(path.parent.parent / "elsewhere")
        else:
            os.mkfifo(path)

    with pytest.raises(LockUnusable, match=str(path)):
        HomeLock(path).acquire()

    assert not (path.parent.parent / "elsewhere").exists()


def test_two_homes_with_one_account_exclude_each_other_and_case_counts(tmp_path: Path) -> None:
    one = AccountLock(AccountId("o9cq80Abc@im.wechat"), tmp_path)
    with one:
        with pytest.raises(AlreadyRunning):
            AccountLock(AccountId("o9cq80Abc@im.wechat"), tmp_path).acquire()
        AccountLock(AccountId("o9cq80abc@im.wechat"), tmp_path).acquire()
    assert one.path.exists(), "the file is never removed"


def test_a_client_that_looks_whether_anybody_runs_keeps_no_supervisor_from_starting(path: Path) -> None:
    with HomeLock(path):
        pass  # the file is there now

    with open(path) as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        letting_go = threading.Timer(0.05, fcntl.flock, (look, fcntl.LOCK_UN))
        letting_go.start()
        with HomeLock(path) as started:
            assert started.held
        letting_go.join()


def test_a_lock_that_stays_shared_is_in_use(path: Path) -> None:
    with HomeLock(path):
        pass

    with open(path) as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        with pytest.raises(AlreadyRunning):
            HomeLock(path).acquire()
