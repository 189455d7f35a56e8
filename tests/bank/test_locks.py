"""One bridge per home and one poller per account, whatever lies in the place of the lock. More: test_lockfile.py."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.bridge import DEADLINE_S, Bridge
from tests.fakes.stage import Stage

Stages = Callable[..., Stage]


@pytest.mark.parametrize("left", ["", "garbage \x00", "1 1", "999999999 5", "9" * 5000])
def test_what_a_dead_bridge_left_in_the_lock_file_keeps_no_start_from_working(stage: Stages, left: str) -> None:
    """B-051, B-072"""
    with stage() as bridge:
        lock = bridge.bridge.home / "run" / "lock"
        lock.parent.mkdir()
        lock.write_text(left)

        bridge.bridge.start()

        assert lock.read_text().split()[0] == str(bridge.bridge.pid)


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self").exists(), reason="needs a system like Linux")
def test_a_folder_in_the_place_of_the_lock_stops_the_start_and_is_named(stage: Stages) -> None:
    """B-072"""
    with stage() as bridge:
        (bridge.bridge.home / "run" / "lock").mkdir(parents=True)

        bridge.bridge.start(wait=False)
        assert bridge.bridge.process is not None

        assert bridge.bridge.process.wait(DEADLINE_S) == 1
        assert any("run/lock" in line for line in bridge.bridge.wait_log("lock"))


def test_a_suspended_bridge_still_holds_home_and_account(stage: Stages) -> None:
    """B-051: no time frees it; it goes on when it is woken."""
    with stage() as bridge:
        bridge.begin()
        held = bridge.bridge.process
        assert held is not None
        held.send_signal(signal.SIGSTOP)
        try:
            second = Bridge(bridge.bridge.home, base_url=bridge.wechat.base_url, cdn_url=bridge.wechat.cdn_url)
            with second:
                second.start(wait=False)
                assert second.process is not None
                assert second.process.wait(DEADLINE_S) == 3
        finally:
            held.send_signal(signal.SIGCONT)

        bridge.answer_to(bridge.me, "still here")


def test_a_home_that_was_copied_does_not_make_a_second_poller_of_its_account(stage: Stages) -> None:
    """B-012: another home, the same login."""
    with stage() as bridge, stage() as copy:
        bridge.begin()
        (copy.bridge.home / "credentials.json").write_bytes((bridge.bridge.home / "credentials.json").read_bytes())
        (copy.bridge.home / "credentials.json").chmod(0o600)

        copy.bridge.start(wait=False)
        assert copy.bridge.process is not None

        assert copy.bridge.process.wait(DEADLINE_S) == 3
        copy.bridge.wait_log(f"process {bridge.bridge.pid}")
        bridge.answer_to(bridge.me, "answered once")
        assert len(bridge.wechat.view().texts(bridge.me)) == 1


def test_a_killed_bridge_is_started_again_within_a_second_of_being_ready(stage: Stages) -> None:
    """B-094"""
    with stage() as bridge:
        bridge.begin()
        bridge.bridge.kill()
        began = time.monotonic()

        bridge.bridge.start()

        assert time.monotonic() - began < 10  # no rule of time: the machine may be slow
        account = json.loads(bridge.bridge.ctl("accounts", "--json").stdout)[0]
        assert account["lock"]["held"]
