"""Whose answer goes where, whole, and what an operator sees of one that was refused."""

import random
import re
import signal
from collections.abc import Callable

from supervisor import notices
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


def test_of_two_hundred_messages_of_three_people_each_answer_reaches_its_asker_under_its_own_token(
    stage: Stages,
) -> None:
    """B-001"""
    dice = random.Random(7)
    with stage(guests=2, settings="[guests]\nmax_turns_per_hour = 0\n[workers]\nconcurrency = 3\n") as bridge:
        bridge.begin()
        people = (bridge.me, *bridge.guests)
        asked: dict[str, list[str]] = {person: [] for person in people}
        tokens: dict[str, set[str]] = {person: set() for person in people}
        for number in range(200):
            person = dice.choice(people)
            text = f"{people.index(person)} asks {number}"
            asked[person].append(text)
            tokens[person].add(bridge.wechat.say(person, text).context_token)
            if number % 4 == 3:  # max_queue is 8: nobody is to be turned away
                for each in people:
                    if asked[each]:
                        bridge.hears(each, asked[each][-1])
            if number == 99:  # everybody has been answered
                bridge.worker(bridge.me).send_signal(signal.SIGKILL)
                bridge.bridge.wait_log(f"worker_gone peer={bridge.me} ")

        for person in people:
            bridge.hears(person, asked[person][-1])
            assert bridge.wechat.view().texts(person) == asked[person]
        for request in bridge.wechat.requests("sendmessage"):
            sent = request["body"]["msg"]
            assert sent["context_token"] in tokens[sent["to_user_id"]]


NUMBER = re.compile(r"\s*\[\d+/\d+\]\s*")


def test_a_text_longer_than_phones_show_arrives_whole_whatever_it_is_made_of(stage: Stages) -> None:
    """B-008, B-080: the service cuts at 2000 characters and says nothing."""
    texts = ("测" * 3500, "测" * 2000, "a" * 2000, "a" * 2001, "👨\u200d🚀" * 300)
    with stage(wechat_keys="max_inbound_chars = 10000") as bridge:
        bridge.wechat.set_fault("truncate_text", limit=2000)
        bridge.begin()
        heard = 0
        for text in texts:
            bridge.say(bridge.me, text)
            bridge.bridge.wait_log("message_closed", count=texts.index(text) + 1)
            view = bridge.wechat.wait_for(
                lambda view, heard=heard, text=text: (
                    "".join(  # type: ignore[misc]
                        NUMBER.sub("", one) for one in view.texts(bridge.me)[heard:]
                    )
                    == text
                )
            )
            heard = len(view.texts(bridge.me))


def test_an_answer_that_is_refused_is_kept_shown_with_its_age_and_logged_once(stage: Stages) -> None:
    """B-009"""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.wechat.set_fault("reject_send", code=-2)
        bridge.say(bridge.me, "SAY the answer")
        bridge.bridge.wait_log("send_rejected")
        bridge.bridge.wait_log("message_closed")

        row = bridge.bridge.wait_status(lambda status: status["peers"][0]["parked_parts"] == 1)["peers"][0]
        told = bridge.bridge.ctl("doctor", check=False).stdout
        assert row["parked_parts"] == 1
        assert "wait" in told and bridge.me.split("@")[0][:8] in told
        assert len(bridge.wechat.sends()) == 1, "neither the answer nor a notice is tried again"
        assert len([line for line in bridge.bridge.lines if "send_rejected" in line]) == 1

        bridge.wechat.clear_faults()
        bridge.say(bridge.me, "SAY more")
        assert bridge.answers(bridge.me, 2) == ["the answer", "more"]


def test_a_worker_killed_in_a_long_turn_leaves_status_queue_and_stop_of_one_mind(stage: Stages) -> None:
    """B-050"""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)
        bridge.worker(bridge.me).send_signal(signal.SIGKILL)
        bridge.hears(bridge.me, notices.failed().en)

        bridge.say(bridge.me, "/status")
        bridge.wechat.wait_for(lambda view: any(text.startswith("Idle.") for text in view.texts(bridge.me)))
        bridge.say(bridge.me, "/stop")
        bridge.hears(bridge.me, notices.nothing_running().en)
        assert bridge.state(bridge.me) == "idle"
        bridge.say(bridge.me, "SAY and on")
        bridge.hears(bridge.me, "and on")


def test_what_the_bridge_adds_for_the_agent_is_neither_echoed_nor_in_the_history(stage: Stages) -> None:
    """B-087"""
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "first")
        quoted = bridge.wechat.bubbles(bridge.me)[0]

        bridge.wechat.say(bridge.me, "about that", quote={"message_id": quoted.message_id})
        bridge.hears(bridge.me, "about that")
        bridge.say(bridge.me, "/history")
        bridge.answers(bridge.me, 3)

        everything = "\n".join(bridge.wechat.view().texts(bridge.me))
        assert "[bridge" not in everything
        assert str(bridge.bridge.home) not in everything
        assert bridge.wechat.view().texts(bridge.me)[:2] == ["first", "about that"]
        shown = bridge.bridge.ctl("history", bridge.me).stdout
        assert "about that" in shown and "[bridge" not in shown
