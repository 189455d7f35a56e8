"""A worker that dies costs its own peer one line; nobody else notices, and the next message works."""

import os
import signal
from collections.abc import Callable

import pytest

from supervisor import notices
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


def test_a_killed_worker_costs_only_its_own_peer(stage: Stages) -> None:
    """B-015"""
    with stage(agent=FAKE_AGENT, guests=1) as bridge:
        bridge.begin()
        (guest,) = bridge.guests
        bridge.say(guest, "UNTIL gate\nSAY the guest's")
        bridge.say(bridge.me, "WAIT")
        bridge.running(guest)
        bridge.running(bridge.me)
        other = bridge.worker(guest).pid

        os.kill(bridge.worker(bridge.me).pid, signal.SIGKILL)

        assert bridge.answers(bridge.me, 1) == [notices.failed().en]
        bridge.open_gate(guest, "gate")
        assert bridge.answers(guest, 1) == ["the guest's"]
        assert bridge.worker(guest).pid == other
        bridge.say(bridge.me, "SAY next")
        assert bridge.answers(bridge.me, 2)[1] == "next"
        status = bridge.bridge.status()
        mine = next(row for row in status["peers"] if row["peer"] == bridge.me)
        assert mine["worker"]["generation"] == 2
        counters = status["counters"]
        assert (counters["turns_failed"], counters["workers_crashed"], counters["turns_answered"]) == (1, 1, 2)


def test_a_killed_nanny_takes_its_worker_along_and_costs_only_its_own_peer(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)
        worker = bridge.worker(bridge.me)
        nanny = worker.parent()
        assert nanny is not None

        nanny.kill()

        assert bridge.answers(bridge.me, 1) == [notices.failed().en]
        worker.wait(10)
        bridge.say(bridge.me, "SAY next")
        assert bridge.answers(bridge.me, 2)[1] == "next"


@pytest.mark.parametrize("end", ["DIE", "EXIT 0", "EXIT 1"])
def test_an_agent_that_dies_without_a_word_is_a_failure_and_the_next_message_works(stage: Stages, end: str) -> None:
    """B-016"""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()

        bridge.say(bridge.me, end, "SAY next")

        assert bridge.answers(bridge.me, 2) == [notices.failed().en, "next"]
        counters = bridge.counters()
        assert (counters["turns_failed"], counters["turns_answered"]) == (1, 1)


@pytest.mark.parametrize("end", ["DIE", "EXIT 0"])
def test_an_agent_that_dies_after_some_text_is_quoted_and_then_said_to_have_broken_off(stage: Stages, end: str) -> None:
    """B-016"""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()

        bridge.say(bridge.me, f"SAY partial text\n{end}", "SAY next")

        assert bridge.answers(bridge.me, 3) == ["partial text", notices.broke_off().en, "next"]


def test_a_turn_without_text_says_so(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()

        bridge.say(bridge.me, "EMPTY", "REFUSE", "SAY long\nMAXTOKENS")

        expected = [notices.empty().en, notices.declined().en, "long", notices.limited().en]
        assert bridge.answers(bridge.me, 4) == expected
        counters = bridge.counters()
        assert [counters[f"turns_{name}"] for name in ("empty", "declined", "limited")] == [1, 1, 1]


def test_an_agent_killed_while_idle_is_started_anew_and_remembers_the_conversation(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "HISTORY")
        assert bridge.answers(bridge.me, 1) == ["1"]
        worker = bridge.worker(bridge.me)
        (agent,) = worker.children()

        agent.kill()

        bridge.bridge.wait_log(f"worker_gone peer={bridge.me} generation=1")
        bridge.say(bridge.me, "HISTORY")
        assert bridge.answers(bridge.me, 2) == ["1", "3"]
        assert bridge.bridge.status()["peers"][0]["worker"]["generation"] == 2
