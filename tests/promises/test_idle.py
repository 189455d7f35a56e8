"""An idle worker leaves and its conversation stays: the next message starts one that goes on where it was."""

from collections.abc import Callable

from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


def test_an_idle_worker_is_reaped_and_the_next_message_resumes_its_conversation(stage: Stages) -> None:
    """B-091"""
    with stage(agent=FAKE_AGENT, settings="[workers]\nidle_minutes = 0.003") as bridge:
        bridge.begin()
        lasting = len(bridge.bridge.tree()) + 1  # the gateway comes with the first worker that needs it, and stays
        processes = set()

        for cycle in range(5):
            bridge.say(bridge.me, "HISTORY")
            assert bridge.answers(bridge.me, cycle + 1)[-1] == str(2 * cycle + 1)
            bridge.bridge.wait_log(f"worker_gone peer={bridge.me} generation={cycle + 1} why=left")
            processes.add(len(bridge.bridge.tree()))

        assert processes == {lasting}
        status = bridge.bridge.status()
        assert status["peers"][0]["worker"] is None
        assert status["counters"]["workers_started"] == 5
        assert status["counters"].get("workers_crashed", 0) == 0


def test_the_longest_idle_worker_leaves_when_more_than_max_warm_are_idle(stage: Stages) -> None:
    with stage(guests=2, settings="[workers]\nmax_warm = 2") as bridge:
        bridge.begin()
        for person in (bridge.me, *bridge.guests):
            bridge.answer_to(person, "hello")

        rows = bridge.bridge.wait_status(lambda status: sum(row["worker"] is not None for row in status["peers"]) == 2)

        without = [row["peer"] for row in rows["peers"] if row["worker"] is None]
        assert without == [bridge.me]
