"""What a process of the same user can read of the bridge's processes: nothing. As root it is asked by an ordinary user."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.attacks.as_user import NoInterpreter, interpreter, readable_copy, who
from tests.fakes.stage import FAKE_AGENT, Stage
from tests.fakes.wechat import SimulatedWeChat

AS_USER_S = 120
FILES = ("environ", "mem", "maps", "auxv", "fd", "cwd", "exe", "root", "io", "syscall", "stack")
# Account locks lie below the user's home of the password database. This user may have none.
WITH_LOCKS = """
import pathlib, sys
from supervisor import app
sys.exit(app.start(home=None, config_file=None, log_level=None, detach=app.Detach.NO, locks=pathlib.Path({!r})))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.mark.timeout(AS_USER_S + 30)
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests below run as an ordinary user already")
def test_an_ordinary_users_bridge_is_closed_to_that_user() -> None:
    try:
        python = interpreter()
    except NoInterpreter as why:
        pytest.skip(str(why))
    uid, gid = who()
    with readable_copy() as tree:
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/attacks/{Path(__file__).name}"],
            cwd=tree,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            user=uid,
            group=gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=AS_USER_S,
        )

    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def opened(pid: int, name: str) -> str:
    """ "open", or the error's name."""
    path = f"/proc/{pid}/{name}"
    try:
        match name:
            case "fd":
                os.listdir(path)
            case "cwd" | "exe" | "root":
                os.readlink(path)
            case _:
                with open(path, "rb") as file:
                    file.read(1)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "open"


@pytest.fixture
def played() -> Iterator[Stage]:
    if os.geteuid() == 0:
        pytest.skip("nothing is closed to root: an ordinary user asks, above")
    with SimulatedWeChat() as wechat, Stage(wechat, agent=FAKE_AGENT) as s:
        s.bridge.program = ("-c", WITH_LOCKS.format(str(s.folder)))
        s.begin()
        s.say(s.me, "SAY hello")
        s.answers(s.me, 1)
        yield s


def test_supervisor_zygote_and_nannies_are_closed_to_processes_of_the_same_user(played: Stage) -> None:
    supervisor = psutil.Process(played.bridge.pid)
    nanny = psutil.Process(played.bridge.peer(played.me)["worker"]["pid"]).parent()
    assert nanny is not None
    zygote = nanny.parent()
    assert zygote is not None
    assert zygote.parent() == supervisor
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    try:
        found = {
            f"{kind} {name}": opened(process.pid, name)
            for kind, process in (("supervisor", supervisor), ("zygote", zygote), ("nanny", nanny))
            for name in FILES
        }

        assert {what: end for what, end in found.items() if end not in ("EACCES", "EPERM")} == {}
        assert opened(bystander.pid, "environ") == opened(bystander.pid, "maps") == "open"
    finally:
        bystander.communicate(b"\n")
