"""`start --detach`: the command returns once the bridge is ready, or with the reason why it is not."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fakes.bridge import CTL, DEADLINE_S, ROOT, assert_gone


def run(home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "BRIDGE_HOME": str(home)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        stdin=subprocess.DEVNULL,
    )


def start(home: Path) -> subprocess.CompletedProcess[str]:
    return run(home, "-m", "supervisor", "start", "--detach")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Whatever runs there afterwards is ended, and nothing of it may stay."""
    home = tmp_path / "home"
    yield home
    lock = home / "run" / "lock"
    if lock.exists():
        pid = int(lock.read_text().split()[0])
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)] if psutil.pid_exists(pid) else []
        if tree:
            os.kill(pid, signal.SIGKILL)
        assert_gone(tree)


def test_the_command_returns_when_the_bridge_answers_and_leads_no_session_of_ours(home: Path) -> None:
    done = start(home)

    pid = int((home / "run" / "lock").read_text().split()[0])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert run(home, "-c", CTL, "status").returncode == 0
    assert os.getsid(pid) == pid
    assert " bridge_ready " in (home / "bridge.log").read_text()


def test_a_second_one_exits_three_and_names_the_first(home: Path) -> None:
    start(home)
    pid = (home / "run" / "lock").read_text().split()[0]

    done = start(home)

    assert done.returncode == 3
    assert pid in done.stderr and done.stderr.count("\n") == 1
    assert run(home, "-c", CTL, "status").returncode == 0


def test_wrong_settings_exit_two_with_one_line(home: Path) -> None:
    home.mkdir()
    (home / "bridge.toml").write_text('[workers]\nconcurrency = "two"\n')

    done = start(home)

    assert done.returncode == 2
    assert done.stderr == 'bridge.toml: workers.concurrency: expected an integer from 1 to 64, got "two"\n'
