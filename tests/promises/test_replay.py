"""WeChat hands messages out again: in the same batch, later, under new ids, after a restart. Each is answered once."""

from collections.abc import Callable

import pytest

from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


@pytest.mark.parametrize("mode", ["same_batch", "next_poll", "new_id"])
def test_a_message_handed_out_twice_is_answered_once(stage: Stages, mode: str) -> None:
    """B-003"""
    with stage() as bridge:
        bridge.begin()
        bridge.wechat.set_fault("duplicate", mode=mode, times=1)

        bridge.answer_to(bridge.me, "once")
        bridge.bridge.wait_status(lambda status: status["counters"].get("replayed", 0) == 1)
        bridge.answer_to(bridge.me, "after it")

        assert bridge.wechat.view().texts(bridge.me) == ["once", "after it"]
        assert bridge.counters()["turns_answered"] == 2


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_message_that_comes_again_after_a_restart_is_not_answered_again(stage: Stages, end: str) -> None:
    """B-038"""
    with stage() as bridge:
        bridge.begin()
        said = bridge.answer_to(bridge.me, "once")
        getattr(bridge.bridge, end)()
        bridge.bridge.start()

        same = {"message_id": int(said.message_id), "create_time_ms": said.at_ms}
        bridge.wechat.say(bridge.me, "once", overrides=same)
        bridge.wechat.say(bridge.me, "once", overrides={"create_time_ms": said.at_ms})  # and under a new id
        bridge.answer_to(bridge.me, "after it")

        assert bridge.wechat.view().texts(bridge.me) == ["once", "after it"]
        assert bridge.counters()["replayed"] == 2


def test_the_same_words_said_again_later_are_a_new_message(stage: Stages) -> None:
    """B-038"""
    with stage() as bridge:
        bridge.begin()
        said = bridge.answer_to(bridge.me, "again")

        bridge.wechat.say(bridge.me, "again", overrides={"create_time_ms": said.at_ms + 1000})

        assert bridge.answers(bridge.me, 2) == ["again", "again"]


def test_two_people_whose_messages_share_an_id_are_both_answered_and_each_only_once(stage: Stages) -> None:
    """B-056"""
    with stage(guests=1) as bridge:
        bridge.begin()
        (guest,) = bridge.guests
        for _ in range(2):
            bridge.wechat.say_together(
                [
                    (person, {"text": text, "overrides": {"message_id": 42, "create_time_ms": 1_700_000_000_000}})
                    for person, text in ((bridge.me, "mine"), (guest, "the guest's"))
                ]
            )
        bridge.answer_to(bridge.me, "after it")
        bridge.answer_to(guest, "after it")

        assert bridge.wechat.view().texts(bridge.me) == ["mine", "after it"]
        assert bridge.wechat.view().texts(guest) == ["the guest's", "after it"]


def test_neighbouring_and_huge_ids_are_told_apart_and_a_string_is_the_same_id(stage: Stages) -> None:
    """B-068"""
    with stage() as bridge:
        bridge.begin()
        ids: list[int | str] = [9007199254740992, 9007199254740993, 18446744073709551615, "18446744073709551615"]
        texts = ["first", "second", "third", "third"]

        bridge.wechat.say_together(
            [
                (bridge.me, {"text": text, "overrides": {"message_id": one}})
                for text, one in zip(texts, ids, strict=True)
            ]
        )
        bridge.answer_to(bridge.me, "after it")

        assert bridge.wechat.view().texts(bridge.me) == ["first", "second", "third", "after it"]


def test_a_service_that_keeps_messages_until_it_sees_the_new_cursor_sees_it_while_the_turn_runs(stage: Stages) -> None:
    """B-052"""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.wechat.set_fault("rewind")
        bridge.begin()
        bridge.wechat.change_settings(hold_s=0.1)

        bridge.say(bridge.me, "UNTIL gate\nSAY once")
        bridge.running(bridge.me)
        polls = len(bridge.wechat.requests("getupdates"))
        bridge.wechat.wait_for(lambda _: len(bridge.wechat.requests("getupdates")) >= polls + 3)
        bridge.open_gate(bridge.me, "gate")

        assert bridge.answers(bridge.me, 1) == ["once"]
        bridge.say(bridge.me, "SAY after it")
        assert bridge.answers(bridge.me, 2) == ["once", "after it"]
