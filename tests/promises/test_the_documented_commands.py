"""Every command of README and docs/ is run as it stands there: one bridge, one conversation, pages in reading order."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.fakes.bridge import CTL, DEADLINE_S, ROOT, assert_gone
from tests.fakes.stage import Stage
from tests.fakes.wechat import SimulatedWeChat

PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("guide", "wire", "extending"))]
NOT_RUN = {
    "./scripts/demo": "runs until it is interrupted: tests/promises/test_the_demo.py",
    "./scripts/test": "is what runs this test",
    "pipx install .": "installs a program for this machine's user",
    "bridge-supervisor service install": "needs a systemd of the user's: tests/supervisor/test_service.py",
    "bridge-supervisor service status": "the same",
}
EXIT_CODES = {"bridge-ctl stop alice": (0, 1)}  # 1: nothing was running, which it says
LAST = "bridge-ctl shutdown"  # what stands behind it on the pages still needs the bridge


def commands() -> list[str]:
    """Without what is a comment for the reader, each once."""
    found: dict[str, None] = {}
    for page in PAGES:
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                assert line.startswith("$ "), f"{page.name}: {line}"
                found[" ".join(shlex.split(line[2:], comments=True))] = None
    return list(found)


def in_python(command: str) -> list[str]:
    program, *arguments = shlex.split(command)
    start = {"bridge-ctl": ["-c", CTL], "bridge-supervisor": ["-m", "supervisor"]}[program]
    return [sys.executable, *start, *arguments]


@pytest.fixture
def reader(stage: Callable[..., Stage]) -> Iterator[Stage]:
    """A bridge that is not started yet; what the commands start is ended, should they not do so themselves."""
    made = stage()
    yield made
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("BRIDGE_HOME") == str(made.bridge.home):
            process.kill()


def test_every_command_of_the_pages_does_what_they_say(reader: Stage, wechat: SimulatedWeChat) -> None:
    for label in ("alice", "mallory"):
        wechat.add_person(f"{label}@im.wechat", name=label)
    env = {**reader.bridge.env(), "LC_ALL": "C.UTF-8"}
    folder = Path(reader.folder)
    ran: list[str] = []

    def run(command: str) -> None:
        done = subprocess.Popen(
            in_python(command),
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if command == "bridge-ctl login":
            reader.wechat.scan(reader.me)
        out, err = done.communicate(timeout=DEADLINE_S)
        assert done.returncode in EXIT_CODES.get(command, (0,)), f"$ {command}\n{out}{err}"
        assert "Traceback" not in err
        ran.append(command)
        if command == "bridge-ctl login":  # the pages take it that these have written
            for label in ("alice", "mallory"):
                wechat.say(f"{label}@im.wechat", "hello")
            reader.bridge.wait_status(lambda status: len(status["refused"]) == 2)

    listed = [command for command in commands() if command not in NOT_RUN]
    for command in listed:
        if command != LAST:
            run(command)
    supervisor = psutil.Process(reader.bridge.status()["pid"])
    tree = [supervisor, *supervisor.children(recursive=True)]
    run(LAST)

    assert set(ran) == set(listed)
    assert_gone(tree, within_s=DEADLINE_S)
    assert (folder / "restored" / "state.db").exists()


def test_what_is_not_run_still_stands_on_the_pages() -> None:
    assert set(NOT_RUN) | set(EXIT_CODES) | {LAST} <= set(commands())


def test_a_newcomer_is_shown_the_whole_way() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    for verb in ("login", "status", "allow", "history", "stop", "pause", "doctor"):
        assert re.search(rf"^\$ bridge-ctl {verb}\b", readme, re.MULTILINE), verb
    assert all((ROOT / link).exists() for link in re.findall(r"\]\((docs/[^)#]+)", readme))
