"""SIGKILL of the supervisor at any moment: nothing recorded is lost, nothing is answered twice, nothing is left running.

Bridge.kill() itself asserts that no process of the tree is left.
"""

import json
import time
from collections.abc import Callable

from supervisor import notices
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


def test_messages_sent_while_the_bridge_is_down_are_answered_and_marked_late(stage: Stages) -> None:
    """B-084"""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "SAY before")
        bridge.answers(bridge.me, 1)
        bridge.bridge.kill()

        bridge.say(bridge.me, "SAY one")
        quarter_of_an_hour_ago = int(time.time() - 900) * 1000
        bridge.wechat.say(bridge.me, "BLOCKS", overrides={"create_time_ms": quarter_of_an_hour_ago})
        bridge.bridge.start()

        texts = bridge.answers(bridge.me, 3)
        assert texts[:2] == ["before", "one"]
        assert "only arrives now" in texts[2]


def test_a_message_taken_by_the_service_while_the_bridge_is_starting_is_answered(stage: Stages) -> None:
    """B-084"""
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "before")
        bridge.bridge.stop()

        bridge.bridge.start(wait=False)
        bridge.say(bridge.me, "while starting")

        assert bridge.answers(bridge.me, 2) == ["before", "while starting"]


def test_killed_before_the_batch_reached_it_the_message_is_answered_once_after_the_restart(stage: Stages) -> None:
    """B-018: the service had handed the batch over, but its answer never came through."""
    with stage() as bridge:
        bridge.wechat.set_fault("rewind")
        bridge.begin()
        bridge.answer_to(bridge.me, "before")
        bridge.wechat.set_fault("never_answer", path="getupdates", when="after", times=1)
        bridge.answer_to(bridge.me, "the poll after this one is struck")
        bridge.wechat.wait_for(lambda _: bridge.wechat.faults()[1]["strikes"] == 1)
        bridge.say(bridge.me, "lost on the way")
        bridge.wechat.wait_for(lambda view: view.bots[0]["waiting"] == 0)

        bridge.bridge.kill()
        bridge.bridge.start()

        bridge.hears(bridge.me, "lost on the way")
        bridge.answer_to(bridge.me, "after it")
        assert bridge.wechat.view().texts(bridge.me)[2:] == ["lost on the way", "after it"]


def test_killed_in_mid_turn_the_peer_is_told_once_what_waited_runs_and_the_agent_is_warned(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)
        bridge.say(bridge.me, "SAY two", "BLOCKS")
        bridge.bridge.wait_status(lambda status: status["peers"][0]["queued"] == 2)

        bridge.bridge.kill()
        bridge.bridge.start()

        texts = bridge.answers(bridge.me, 3)
        assert texts[:2] == [notices.interrupted().en, "two"]
        assert "cut off" not in texts[2]  # only the first turn after it is warned
        assert bridge.counters()["turns_interrupted"] == 1
        bridge.bridge.kill()
        bridge.bridge.start()
        bridge.say(bridge.me, "SAY last")
        assert bridge.answers(bridge.me, 4) == [*texts, "last"]


def test_the_first_turn_after_an_interrupted_one_is_told_what_was_in_doubt(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)
        bridge.bridge.kill()
        bridge.bridge.start()
        bridge.answers(bridge.me, 1)

        bridge.say(bridge.me, "BLOCKS")

        notes = [block["text"] for block in json.loads(bridge.answers(bridge.me, 2)[1])]
        assert any("your last turn was cut off while you answered “WAIT”" in note for note in notes)


def test_killed_while_others_wait_for_a_slot_everybody_is_answered_after_the_restart(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, guests=2, settings="[workers]\nconcurrency = 1") as bridge:
        bridge.begin()
        first, second = bridge.guests
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)
        bridge.say(first, "SAY first's")
        bridge.say(second, "SAY second's", "SAY second's again")
        bridge.bridge.wait_status(lambda status: sum(row["queued"] for row in status["peers"]) == 3)

        bridge.bridge.kill()
        bridge.bridge.start()

        assert bridge.answers(first, 1) == ["first's"]
        assert bridge.answers(second, 2) == ["second's", "second's again"]
        assert bridge.answers(bridge.me, 1) == [notices.interrupted().en]
        assert bridge.counters()["turns_answered"] == 3


def test_killed_while_an_answer_was_on_its_way_it_is_shown_once(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.wechat.set_fault("never_answer", path="sendmessage", when="after", times=1)
        bridge.say(bridge.me, "once")
        bridge.wechat.wait_for(lambda view: view.texts(bridge.me) == ["once"])

        bridge.bridge.kill()
        bridge.bridge.start()

        bridge.answer_to(bridge.me, "after it")
        assert bridge.wechat.view().texts(bridge.me) == ["once", "after it"]
        keys = [send["client_id"] for send in bridge.wechat.sends() if send["text"] == "once"]
        assert len(keys) == 2
        assert len(set(keys)) == 1
        counters = bridge.counters()
        assert (counters["turns_answered"], counters.get("turns_interrupted", 0)) == (2, 0)


def test_killed_before_the_answer_reached_the_service_it_is_sent_after_the_restart(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.wechat.set_fault("never_answer", path="sendmessage", when="before", times=1)
        bridge.say(bridge.me, "once")
        bridge.wechat.wait_for(lambda _: any(fault["strikes"] for fault in bridge.wechat.faults()))

        bridge.bridge.kill()
        bridge.bridge.start()

        assert bridge.answers(bridge.me, 1) == ["once"]
        assert bridge.counters()["turns_answered"] == 1


def test_killed_three_times_in_a_row_it_starts_at_once_each_time(stage: Stages) -> None:
    """B-094"""
    with stage() as bridge:
        bridge.begin()

        for round_ in range(3):
            bridge.answer_to(bridge.me, f"round {round_}")
            bridge.bridge.kill()
            bridge.bridge.start()

        bridge.answer_to(bridge.me, "still here")
        assert len(bridge.wechat.view().texts(bridge.me)) == 4


def test_a_peer_keeps_its_conversation_over_a_kill(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "HISTORY")
        assert bridge.answers(bridge.me, 1) == ["1"]

        bridge.bridge.kill()
        bridge.bridge.start()
        bridge.say(bridge.me, "HISTORY")

        assert bridge.answers(bridge.me, 2) == ["1", "3"]
