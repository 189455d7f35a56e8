"""How many processes there are: as many as live conversations need, after every path that ends one."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.fakes.bridge import ROOT, Bridge, lives
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]
AGENT = "acp_agent.py"


def agents(bridge: Stage) -> list[psutil.Process]:
    """Agent programs, by what stands on their command line."""
    found = []
    for process in bridge.bridge.tree():
        try:
            if lives(process) and any(AGENT in word for word in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_fresh_conversation_each_time_and_a_sweep_of_idle_ones_leave_only_what_lives(stage: Stages) -> None:
    """B-054"""
    with stage(agent=FAKE_AGENT, guests=3, settings="[workers]\nidle_minutes = 0.05\nmax_warm = 2\n") as bridge:
        bridge.begin()
        for number in range(8):
            bridge.say(bridge.me, f"SAY {number}")
            bridge.hears(bridge.me, f"{number}")
            assert len(agents(bridge)) <= 1
            bridge.say(bridge.me, "/new")
            bridge.bridge.wait_log(f"worker_gone peer={bridge.me} ", count=number + 1)
        assert agents(bridge) == []

        for guest in bridge.guests:
            bridge.say(guest, "SAY hello")
            bridge.hears(guest, "hello")
        assert len(agents(bridge)) <= 3
        bridge.bridge.wait_log("worker_gone peer=(?!probe).* why=left", count=8 + 3)
        assert agents(bridge) == []


def is_gateway(process: psutil.Process) -> bool:
    """One for all workers, started for the first that talks to a model: it stays."""
    return any("supervisor.gateway" in word for word in process.cmdline())


@pytest.mark.parametrize("flag", ["--die-before-hello", "--exit-silently", "--version-2", "--auth"])
def test_an_agent_that_never_opens_leaves_no_process(stage: Stages, flag: str) -> None:
    """B-054: failing handshakes."""
    with stage(agent=FAKE_AGENT.replace(AGENT + '"', f'{AGENT}", "{flag}"')) as bridge:
        bridge.begin()
        before = len(bridge.bridge.tree())
        for number in range(2):
            bridge.say(bridge.me, f"SAY {number}")
            bridge.answers(bridge.me, number + 1)

        bridge.bridge.wait_log(f"worker_gone peer={bridge.me} ", count=2)
        assert agents(bridge) == []
        assert len([one for one in bridge.bridge.tree() if lives(one) and not is_gateway(one)]) <= before


def test_a_wrapper_that_ends_first_takes_nobody_with_it_and_leaves_nobody_behind(stage: Stages, tmp_path: Path) -> None:
    """B-097: `sh -c` starts the agent and the signal goes to the tree, not only to the wrapper."""
    command = f'["/bin/sh", "-c", "{sys.executable} {ROOT}/tests/fakes/{AGENT}; true"]'
    folder = str(Path(sys.executable).resolve().parent.parent)
    agent = f'[agent]\nhost = "acp"\ncommand = {command}\nread = ["{ROOT}", "{folder}", "{sys.prefix}"]\n'
    with stage(agent=agent, settings="[workers]\nstop_grace_s = 0.5\n") as bridge:
        bridge.begin()
        bridge.say(bridge.me, "SAY one")
        bridge.hears(bridge.me, "one")
        tree = agents(bridge)
        assert len(tree) >= 2, "the wrapper and the agent"

        bridge.say(bridge.me, "/new")
        bridge.bridge.wait_log(f"worker_gone peer={bridge.me} ")

        assert not [process for process in tree if lives(process)]


UNSHARE = shutil.which("unshare")


def zombies(root: psutil.Process) -> list[psutil.Process]:
    return [p for p in root.children(recursive=True) if p.status() == psutil.STATUS_ZOMBIE]


class FirstProcess(Bridge):
    """The supervisor as process 1 of a pid namespace of its own, as in a container without an init."""

    wrapper = (str(UNSHARE), "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.mark.skipif(UNSHARE is None, reason="no unshare here")
def test_as_process_1_of_a_container_it_leaves_no_zombie(stage: Stages) -> None:
    """B-097: what is orphaned in its namespace comes to it, and it has to be reaped."""
    if subprocess.run([str(UNSHARE), "--pid", "--fork", "--mount-proc", "true"], check=False).returncode:
        pytest.skip("no pid namespace for this user")
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.bridge = FirstProcess(
            bridge.bridge.home, base_url=bridge.wechat.base_url, cdn_url=bridge.wechat.cdn_url, settings=bridge.settings
        )
        bridge.begin()
        wrapper = psutil.Process(bridge.bridge.pid)
        (supervisor,) = wrapper.children()
        for number in range(15):
            bridge.say(bridge.me, f"SAY {number}")
            bridge.hears(bridge.me, f"{number}")
            (zygote,) = [one for one in supervisor.children() if not is_gateway(one)]
            match number % 4:
                case 0:
                    bridge.say(bridge.me, "/new")
                case 1:
                    bridge.say(bridge.me, "DIE")
                case 2:
                    (nanny,) = zygote.children()
                    nanny.kill()
                case _:
                    zygote.kill()  # its nanny comes to the supervisor, which is process 1
                    bridge.say(bridge.me, "/new")
            bridge.bridge.wait_log(f"worker_gone peer={bridge.me} ", count=number + 1)

        bridge.say(bridge.me, "SAY the end")
        bridge.hears(bridge.me, "the end")
        assert bridge.bridge.status()["pid"] == 1
        assert zombies(wrapper) == []
