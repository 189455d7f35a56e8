"""The link between supervisor and workers, through the real program. More: test_router.py, test_pool.py."""

import signal
from collections.abc import Callable

from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


def test_a_worker_killed_ten_times_in_a_row_costs_no_message_of_those_that_follow(stage: Stages) -> None:
    """B-044: each one is another instance with an identity of its own."""
    with stage() as bridge:
        bridge.begin()
        for number in range(10):
            bridge.answer_to(bridge.me, f"before {number}")
            bridge.worker(bridge.me).send_signal(signal.SIGKILL)
            bridge.say(bridge.me, f"after {number}")
            bridge.bridge.wait_log(f"worker_gone peer={bridge.me} ", count=number + 1)
            bridge.answer_to(bridge.me, f"later {number}")

        said = bridge.wechat.view().texts(bridge.me)
        assert [text for text in said if text.startswith(("before", "later"))] == [
            f"{when} {number}" for number in range(10) for when in ("before", "later")
        ]
        # A message that came while its worker was dying is answered, or its peer is told: never both, never neither.
        assert len(said) == 30
        generations = {
            line.split("generation=")[1].split()[0] for line in bridge.bridge.lines if "worker_ready" in line
        }
        assert len(generations) >= 11


def test_a_supervisor_that_stands_still_while_a_worker_comes_up_hears_it_afterwards(stage: Stages) -> None:
    """B-055"""
    with stage(agent=FAKE_AGENT, guests=1) as bridge:
        bridge.begin()
        (guest,) = bridge.guests
        bridge.say(bridge.me, "SAY one")
        bridge.hears(bridge.me, "one")
        process = bridge.bridge.process
        assert process is not None

        bridge.worker(bridge.me).send_signal(signal.SIGKILL)
        bridge.bridge.wait_log(f"worker_gone peer={bridge.me} ")
        bridge.say(bridge.me, "SAY two")
        bridge.say(guest, "SAY three")
        bridge.bridge.wait_log("isolation|turn_started", count=2)
        process.send_signal(signal.SIGSTOP)
        try:
            bridge.wechat.wait_for(lambda view: view.polls_in_flight() <= 1)
        finally:
            process.send_signal(signal.SIGCONT)

        bridge.hears(bridge.me, "two")
        bridge.hears(guest, "three")
        assert bridge.counters()["turns_answered"] == 3
