"""The control screen on a real terminal: `bridge-ctl` in tmux, at 80×24, with and without colours."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.bridge import CTL, DEADLINE_S, ROOT
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]
pytestmark = [
    pytest.mark.second,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed here"),
]


class Terminal:
    """One tmux server of the test's own. The shell's last line says how the program ended."""

    def __init__(self, name: str) -> None:
        self._name = name

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._name, "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S).stdout

    def start(self, env: dict[str, str]) -> None:
        variables = [f"{name}={value}" for name, value in env.items()]
        program = ["env", *variables, sys.executable, "-c", CTL]
        script = 'cd "$0" && "$@"; echo "ended with $?"; exec cat'
        self.tmux("new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", script, str(ROOT), *program)

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def colours(self) -> str:
        return self.tmux("capture-pane", "-p", "-e")

    def shows(self, *words: str, without: str = "\0") -> str:
        """The screen, once these words stand on it, and that one does not. A terminal tells nobody when it has changed."""
        end = time.monotonic() + DEADLINE_S
        while True:
            screen = self.tmux("capture-pane", "-p")
            if all(word in screen for word in words) and without not in screen:
                return screen
            if time.monotonic() > end:
                raise AssertionError(f"not {words} but:\n{screen}")
            time.sleep(0.05)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal(f"bridge-{uuid.uuid4().hex[:8]}")
    try:
        yield made
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            made.tmux("kill-server")


def environment(bridge: Stage, **more: str) -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT), "BRIDGE_HOME": str(bridge.bridge.home), "LC_ALL": "C.UTF-8", **more}


def test_the_bare_call_on_a_terminal_shows_and_steers_the_bridge(stage: Stages, terminal: Terminal) -> None:
    with stage(agent=FAKE_AGENT, guests=1) as bridge:
        bridge.begin()
        guest = bridge.guests[0]
        terminal.start(environment(bridge))
        terminal.shows("default", "operator", "? help q")

        bridge.say(guest, "WAIT")
        terminal.shows(guest[:13], "running", "turn_started")
        terminal.press("s")
        terminal.shows("message_closed", "state=stopped")

        terminal.press("h")
        terminal.shows("peer: WAIT")
        terminal.press("Escape")
        terminal.shows("questions 0", without="peer: WAIT")  # a key right behind Esc would make one with it
        terminal.press("p")
        terminal.shows("default paused")
        terminal.press("p")
        terminal.shows("default running")
        terminal.press("q")
        terminal.shows("ended with 0")


def test_it_does_without_colours(stage: Stages, terminal: Terminal) -> None:
    with stage() as bridge:
        bridge.begin()
        terminal.start(environment(bridge, NO_COLOR="1"))

        terminal.shows("default", "? help q")

        assert not any(f"\x1b[{code}m" in terminal.colours() for code in (31, 32, 33, 34, 35, 36))


def test_without_a_supervisor_it_says_so_and_ends(terminal: Terminal, tmp_path: os.PathLike[str]) -> None:
    terminal.start({"PYTHONPATH": str(ROOT), "BRIDGE_HOME": str(tmp_path), "LC_ALL": "C.UTF-8"})

    terminal.shows("no supervisor runs", "ended with 3")
