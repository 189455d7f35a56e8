"""An orderly end: turns that run are finished, what waits is kept, each peer with unfinished work gets one line."""

import signal
import time
from collections.abc import Callable

import pytest

from supervisor import notices
from tests.fakes.bridge import DEADLINE_S, Bridge
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


def test_a_running_turn_is_finished_before_the_bridge_ends(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "UNTIL gate\nSAY finished")
        bridge.running(bridge.me)

        tree = bridge.bridge.tree()
        bridge.bridge.ctl("shutdown")
        bridge.bridge.wait_log("bridge_stopping running=1")
        bridge.open_gate(bridge.me, "gate")

        assert bridge.answers(bridge.me, 1) == ["finished"]
        assert bridge.bridge.process is not None
        assert bridge.bridge.process.wait(DEADLINE_S) == 0
        assert not [process for process in tree if process.is_running()]


def test_a_second_signal_stops_now_and_each_peer_gets_the_line_that_fits(stage: Stages) -> None:
    """B-036"""
    with stage(agent=FAKE_AGENT, guests=2, settings="[timers]\nack_s = 600") as bridge:
        bridge.begin()
        both, waiting = bridge.guests
        bridge.say(bridge.me, "WAIT")
        bridge.say(both, "WAIT")
        bridge.running(bridge.me)
        bridge.running(both)
        bridge.say(both, "SAY kept")
        bridge.say(waiting, "SAY one", "SAY two")
        bridge.bridge.wait_status(lambda status: sum(row["queued"] for row in status["peers"]) == 3)

        assert bridge.bridge.process is not None
        bridge.bridge.process.send_signal(signal.SIGTERM)
        bridge.bridge.wait_log("bridge_stopping running=2")
        code = bridge.bridge.stop()

        assert code == 0
        assert bridge.answers(bridge.me, 1) == [notices.closing_running().en]
        assert bridge.answers(both, 1) == [notices.closing_both(1).en]
        assert bridge.answers(waiting, 1) == [notices.closing_waiting(2).en]
        assert bridge.wechat.wait_for(lambda view: not any(view.typing(one) for one in (bridge.me, both, waiting)))
        bridge.bridge.start()
        assert bridge.answers(both, 2)[1:] == ["kept"]
        assert bridge.answers(waiting, 3)[1:] == ["one", "two"]
        assert bridge.wechat.view().texts(bridge.me) == [notices.closing_running().en]
        counters = bridge.counters()
        assert (counters["turns_interrupted"], counters["turns_answered"]) == (2, 3)


def test_the_drain_ends_after_drain_s(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, settings="[timers]\ndrain_s = 0.3") as bridge:
        bridge.begin()
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)

        assert bridge.bridge.stop() == 0

        assert bridge.wechat.view().texts(bridge.me) == [notices.closing_running().en]


def test_a_bridge_without_work_says_nothing_and_ends_at_once(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "hello")

        began = time.monotonic()
        code = bridge.bridge.stop(signal.SIGINT)

        assert code == 0
        assert time.monotonic() - began < 10
        assert bridge.wechat.view().texts(bridge.me) == ["hello"]


@pytest.mark.parametrize("path", ["sendmessage", "getupdates", "*"])
def test_it_ends_in_time_though_the_service_never_answers(stage: Stages, path: str) -> None:
    """B-061"""
    with stage(agent=FAKE_AGENT, settings="[timers]\ndrain_s = 0.2") as bridge:
        bridge.begin()
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)
        bridge.say(bridge.me, "SAY kept")
        bridge.bridge.wait_status(lambda status: status["peers"][0]["queued"] == 1)
        bridge.wechat.set_fault("never_answer", path=path)

        assert bridge.bridge.stop(timeout_s=25) == 0

        bridge.wechat.clear_faults()
        bridge.bridge.start()
        bridge.hears(bridge.me, "kept")


def test_it_ends_in_time_with_a_worker_that_was_killed_meanwhile(stage: Stages) -> None:
    """B-061"""
    with stage(agent=FAKE_AGENT, settings="[timers]\ndrain_s = 0.2") as bridge:
        bridge.begin()
        bridge.say(bridge.me, "HANG")
        bridge.running(bridge.me)
        worker = bridge.worker(bridge.me)

        bridge.bridge.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
        worker.kill()

        assert bridge.bridge.process is not None
        assert bridge.bridge.process.wait(DEADLINE_S) == 0


def test_messages_around_the_stop_are_answered_once_now_or_after_the_restart(stage: Stages) -> None:
    """B-039: the signal comes at a moment of its own each time, before, within and behind the poll's answer."""
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "before")
        expected = ["before"]
        for step in range(8):
            texts = [f"step {step} one", f"step {step} two"]
            moment = time.monotonic() + step * 0.004
            bridge.say_at_once(*((bridge.me, text) for text in texts))
            while time.monotonic() < moment:
                pass
            assert bridge.bridge.stop() == 0
            bridge.bridge.start()
            expected += texts
            bridge.hears(bridge.me, texts[-1])

        heard = [text for text in bridge.wechat.view().texts(bridge.me) if "shutting down" not in text]
        assert heard == expected


@pytest.mark.parametrize("after_ms", [0, 50, 200, 500])
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_ends_it_with_a_defined_code_and_the_next_start_works(
    stage: Stages, after_ms: int, sig: signal.Signals
) -> None:
    """B-096: killed by the signal before there is a handler, 1 while starting, 0 once it was ready."""
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "before")
        bridge.bridge.stop()

        bridge.bridge.start(wait=False)
        moment = time.monotonic() + after_ms / 1000
        while time.monotonic() < moment:
            pass
        code = bridge.bridge.stop(sig)

        ready = any(" bridge_ready " in line for line in bridge.bridge.lines)
        assert code in ((0,) if ready else (-sig, 1, 130)), bridge.bridge.lines
        bridge.bridge.start()
        bridge.answer_to(bridge.me, "after it")


def test_a_start_that_is_refused_says_why_in_one_line_and_leaves_nothing_behind(stage: Stages) -> None:
    """B-061: an exception in the middle of the start."""
    with stage() as bridge:
        home: Bridge = bridge.bridge
        (home.home / "run").mkdir()
        (home.home / "run" / "ctl.sock").write_text("no socket: nobody removes what is not ours")

        began = time.monotonic()
        home.start(wait=False)
        assert home.process is not None
        code = home.process.wait(DEADLINE_S)

        assert code == 1
        assert time.monotonic() - began < 10
        home.wait_log("ctl.sock")
        assert "Traceback" not in "\n".join(home.lines)
