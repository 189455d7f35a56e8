"""A real bridge for integration tests: the program itself as a process, in a home of its own.

Everything is awaited by an event (a log line, an exit, the simulated WeChat's own events) with a generous deadline.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 30.0
CTL = "from supervisor.console.main import main; main()"


class Bridge:
    """settings: extra TOML, appended to the tables that point the bridge at the simulated WeChat."""

    wrapper: tuple[str, ...] = ()  # a program that starts ours

    def __init__(self, home: Path, *, base_url: str, cdn_url: str, settings: str = "", wechat: str = "") -> None:
        self.home = home
        self.program: tuple[str, ...] = ("-m", "supervisor", "start")  # what Python is to run
        self.process: subprocess.Popen[bytes] | None = None
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._reader: threading.Thread | None = None
        home.mkdir(parents=True, exist_ok=True)
        self.configure(
            f'[wechat]\nbase_url = "{base_url}"\ncdn_base_url = "{cdn_url}"\nsend_gap_ms = 0\n{wechat}\n{settings}'
        )

    def configure(self, toml: str) -> None:
        (self.home / "bridge.toml").write_text(toml, encoding="utf-8")

    def env(self) -> dict[str, str]:
        """locks: account locks lie below the passwd home, so tests of one user share a folder and keep ids apart."""
        return {**os.environ, "PYTHONPATH": str(ROOT), "BRIDGE_HOME": str(self.home), "BRIDGE_LOG": "debug"}

    def start(self, *arguments: str, wait: bool = True) -> Self:
        self.lines.clear()
        self.process = subprocess.Popen(
            [*self.wrapper, sys.executable, *self.program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self.env(),
            cwd=ROOT,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()
        if wait:
            self.wait_log(r" bridge_ready ")
        return self

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            with self._more:
                self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def wait_log(self, pattern: str, *, count: int = 1, timeout_s: float = DEADLINE_S) -> list[str]:
        """The first `count` lines that match; raises with the whole log when they do not come."""
        found: list[str] = []

        def enough() -> bool:
            found[:] = [line for line in self.lines if re.search(pattern, line)]
            return len(found) >= count

        with self._more:
            end = time.monotonic() + timeout_s
            while not enough():
                left = end - time.monotonic()
                gone = self.process is not None and self.process.poll() is not None
                if left <= 0 or (gone and not self._more.wait(0.5)):
                    if enough():
                        break
                    raise AssertionError(f"no {count} lines {pattern!r} in:\n" + "\n".join(self.lines[-80:]))
                self._more.wait(min(left, 1.0))
        return found[:count]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def ctl(self, *arguments: str, check: bool = True, input: str | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", CTL, *arguments],
            env=self.env(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            input=input if input is not None else "",
        )
        if check and done.returncode != 0:
            raise AssertionError(f"bridge-ctl {arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def popen_ctl(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", CTL, *arguments],
            env=self.env(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def status(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.ctl("status", "--json").stdout)
        return loaded

    def wait_status(
        self, enough: Callable[[Mapping[str, Any]], bool], *, timeout_s: float = DEADLINE_S
    ) -> dict[str, Any]:
        """Ask until the answer is right. Each question is a process of its own, which paces the loop."""
        end = time.monotonic() + timeout_s
        while True:
            status = self.status()
            if enough(status):
                return status
            if time.monotonic() > end:
                raise AssertionError(f"status never became right: {json.dumps(status, indent=1, ensure_ascii=False)}")

    def peer(self, peer: str) -> dict[str, Any]:
        return next(row for row in self.status()["peers"] if row["peer"] == peer)

    def tree(self) -> list[psutil.Process]:
        """The supervisor's whole tree; nannies are the zygote's children."""
        return psutil.Process(self.pid).children(recursive=True)

    def kill(self) -> None:
        """SIGKILL the supervisor alone, and wait until nothing of its tree is left."""
        tree = self.tree()
        assert self.process is not None
        self.process.kill()
        self.process.wait(DEADLINE_S)
        assert_gone(tree)

    def stop(self, sig: int = signal.SIGTERM, *, timeout_s: float = DEADLINE_S) -> int:
        assert self.process is not None
        tree = self.tree() if self.process.poll() is None else []
        self.process.send_signal(sig)
        code = self.process.wait(timeout_s)
        assert_gone(tree)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            tree = self.tree()
            self.process.kill()
            self.process.wait(DEADLINE_S)
            assert_gone(tree)
        if self._reader is not None:
            self._reader.join(5)


def assert_gone(tree: Sequence[psutil.Process], *, within_s: float = 5.0) -> None:
    """No process of these is left; a zombie of somebody else's counts as gone, its parent may take its time."""
    end = time.monotonic() + within_s
    while (left := [process for process in tree if lives(process)]) and time.monotonic() < end:
        time.sleep(0.01)  # they are not our children: nothing tells of their end
    names = [(p.pid, p.cmdline()) for p in left if lives(p)]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not names, f"processes left behind: {names}"


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
