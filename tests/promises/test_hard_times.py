"""A machine that misbehaves under a running bridge: its clock, its disk, its attention. Nothing is lost, nothing twice."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]
HOUR_S = 3600

# The program itself, on a clock that is wrong by what a file says.
WRONG_CLOCK = """
import pathlib, sys, time
told, right = pathlib.Path({file!r}), time.time
time.time = lambda: right() + float(told.read_text() or 0)
from supervisor.__main__ import main
sys.argv[1:] = ["start"]
main()
"""
# The program itself, on a disk that needs so long for each commit.
SLOW_DISK = """
import sys, time
from supervisor.store import Store
apply = Store.apply
Store.apply = lambda store, changes: (time.sleep({wait_s}), apply(store, changes))[1]
from supervisor.__main__ import main
sys.argv[1:] = ["start"]
main()
"""


def test_a_clock_that_jumps_an_hour_either_way_costs_no_message_and_no_answer(stage: Stages, tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    offset.write_text("0")
    with stage(guests=1, settings="[guests]\nmax_turns_per_hour = 3") as bridge:
        bridge.bridge.program = ("-c", WRONG_CLOCK.format(file=str(offset)))
        bridge.begin()
        (guest,) = bridge.guests
        bridge.answer_to(bridge.me, "on time")
        bridge.answer_to(guest, "me too")

        for number, wrong_s in enumerate((HOUR_S, 0, -HOUR_S, 0)):
            offset.write_text(str(wrong_s))
            bridge.answer_to(bridge.me, f"now {number}")
        offset.write_text(str(-HOUR_S))
        bridge.answer_to(guest, "set back, and not locked out")
        bridge.bridge.kill()
        offset.write_text(str(HOUR_S))
        bridge.bridge.start()
        bridge.answer_to(bridge.me, "after a restart in another hour")

        said = bridge.wechat.view().texts(bridge.me)
        assert said == ["on time", *(f"now {number}" for number in range(4)), "after a restart in another hour"]
        assert bridge.wechat.view().texts(guest) == ["me too", "set back, and not locked out"]
        counters = bridge.counters()
        assert (counters["turns_answered"], counters.get("replayed", 0)) == (8, 0)


def test_a_bridge_that_was_suspended_takes_up_where_it_was_and_ends_nobody_for_its_own_absence(stage: Stages) -> None:
    """Ten minutes are three seconds here: a worker counts as hung after two."""
    with stage(agent=FAKE_AGENT, settings="[timers]\nhang_s = 2.0\n") as bridge:
        bridge.begin()
        bridge.say(bridge.me, "SAY before\nUNTIL gate\nSAY after")
        bridge.running(bridge.me)
        worker = bridge.worker(bridge.me)

        os.kill(bridge.bridge.pid, signal.SIGSTOP)
        time.sleep(3.0)  # its own absence is what this is about
        bridge.say(bridge.me, "SAY meanwhile")
        os.kill(bridge.bridge.pid, signal.SIGCONT)
        bridge.open_gate(bridge.me, "gate")

        assert "after" in "".join(bridge.hears(bridge.me, "meanwhile"))
        assert worker.is_running()
        assert not [line for line in bridge.bridge.lines if " worker_lost " in line]


def test_a_disk_that_takes_its_time_delays_answers_and_loses_none(stage: Stages) -> None:
    with stage(guests=1) as bridge:
        bridge.bridge.program = ("-c", SLOW_DISK.format(wait_s=0.3))
        bridge.begin()
        (guest,) = bridge.guests

        bridge.say_at_once((bridge.me, "one"), (guest, "two"), (bridge.me, "three"))

        assert bridge.hears(bridge.me, "three") == ["one", "three"]
        assert bridge.hears(guest, "two") == ["two"]
        bridge.bridge.kill()
        bridge.bridge.start()
        bridge.answer_to(bridge.me, "four")
        assert bridge.wechat.view().texts(bridge.me) == ["one", "three", "four"]


def test_on_a_read_only_disk_it_says_so_in_one_line_and_starts_once_it_can_write(
    stage: Stages, small_disk: Path
) -> None:
    with stage(home=small_disk / "home", settings="[workers]\nmin_free_mb = 0") as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "before")
        assert bridge.bridge.stop() == 0
        bridge.say(bridge.me, "while it could not")

        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        bridge.bridge.start(wait=False)
        assert bridge.bridge.process is not None and bridge.bridge.process.wait(30) == 1
        bridge.bridge.wait_log("read-only")
        assert bridge.bridge.lines == [f"{small_disk / 'home'}: lies on a disk that is read-only"]
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        bridge.bridge.start()

        assert bridge.hears(bridge.me, "while it could not") == ["before", "while it could not"]
