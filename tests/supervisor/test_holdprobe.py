"""holdprobe: the real channel against the simulated WeChat, in a home that a bridge has signed in and left."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import holdprobe
from supervisor.credentials import CredentialsFile
from supervisor.holdprobe import ProbeRefused, Verdict
from supervisor.home import Home
from supervisor.lockfile import AccountLock, AlreadyRunning, HomeLock
from supervisor.store import Store
from tests.fakes.stage import Stage
from tests.fakes.wechat import SimulatedWeChat

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def wechat() -> Iterator[SimulatedWeChat]:
    with SimulatedWeChat(hold_s=1.5) as service:
        yield service


@pytest.fixture
def left(wechat: SimulatedWeChat) -> Iterator[Stage]:
    with Stage(wechat) as stage:
        stage.begin()
        stage.bridge.stop()
        yield stage


def measured(left: Stage, hold_ms: int | None = None, account: str = "") -> tuple[Verdict, list[str]]:
    lines: list[str] = []
    verdict = holdprobe.probe(Home(left.bridge.home), None, account, hold_ms, lines.append)
    return verdict, lines


def test_without_a_wish_what_the_server_says_is_held_against_it(left: Stage) -> None:
    verdict, lines = measured(left)

    assert verdict is Verdict.HONOURED
    assert re.fullmatch(r"poll 1: requested nothing, measured 1[4-9]\d\d ms, echoed 1500 ms", lines[0])
    assert lines[-1] == "verdict: honoured"


def test_a_wish_that_is_fulfilled_is_honoured_and_another_ignored(left: Stage) -> None:
    assert measured(left, 300)[0] is Verdict.IGNORED
    assert measured(left, 9_000)[0] is Verdict.IGNORED
    left.wechat.set_fault("honour_hold")
    assert measured(left, 300)[0] is Verdict.HONOURED


def test_what_comes_meanwhile_is_kept_named_and_answered_by_the_next_start(left: Stage) -> None:
    said = left.wechat.say(left.me, "hello while nobody looks")

    verdict, lines = measured(left)

    assert verdict is Verdict.HONOURED
    assert any(re.fullmatch(r"message \d+ group_id=\S+ session_id=\S+", line) for line in lines)
    assert not any("hello" in line for line in lines)
    store, _ = Store.open(Home(left.bridge.home).journal)
    (row,) = store.open_messages()
    store.close()
    assert row.handled == 0
    left.bridge.start()
    assert left.answers(left.me, 1) == ["hello while nobody looks"]
    assert said


def test_a_server_that_fails_is_not_measurable(left: Stage) -> None:
    left.wechat.go_down()

    verdict, lines = measured(left)

    assert verdict is Verdict.NOT_MEASURABLE
    assert "the poll failed" in lines[0]


def test_a_home_or_an_account_in_use_is_refused(left: Stage) -> None:
    home = Home(left.bridge.home)

    with HomeLock(home.lock), pytest.raises(AlreadyRunning):
        measured(left)
    stored, _ = CredentialsFile.open(home.credentials)
    (one,) = stored.all()
    with AccountLock(one.credentials.account, Path.home()), pytest.raises(AlreadyRunning):
        measured(left)


def test_an_account_nobody_knows_and_a_home_without_any_are_refused(left: Stage, tmp_path: Path) -> None:
    with pytest.raises(ProbeRefused, match="no such account"):
        measured(left, account="other")
    with pytest.raises(ProbeRefused, match="nobody is signed in"):
        holdprobe.probe(Home(tmp_path), None, "", None, print)


def test_the_command_ends_with_its_verdict(left: Stage) -> None:
    command = [sys.executable, "-m", "supervisor", "probe", "300", "--home", str(left.bridge.home)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "verdict: ignored"
