"""Long answers: bubbles in order within the budget, the rest parked on disk until the peer writes again."""

import re
from collections.abc import Callable

from supervisor import notices
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]

MORE = notices.more_waiting().en
NUMBER = re.compile(r"^\[\d+/\d+\]\s?")


def paragraphs(count: int, size: int, first: int = 0) -> str:
    """What the fake agent's PARAGRAPHS says."""
    return "".join(f"{index:03d} ".ljust(size, "x") for index in range(first, first + count))


def spoken(texts: list[str]) -> str:
    """Bubbles put together again, without numbers, the line that more waits, and line breaks."""
    return "".join(NUMBER.sub("", text).replace(MORE, "") for text in texts).replace("\n", "")


def test_thirty_paragraphs_arrive_in_order_in_ten_bubbles_at_most_and_none_is_too_long(stage: Stages) -> None:
    """Worked example 1."""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()

        bridge.say(bridge.me, "PARAGRAPHS 30 300")
        bridge.bridge.wait_status(lambda status: status["counters"].get("turns_answered", 0) == 1)
        whole = paragraphs(30, 300)
        view = bridge.wechat.wait_for(lambda view: spoken(view.texts(bridge.me)) == whole)

        texts = view.texts(bridge.me)
        assert len(texts) <= 10
        assert max(len(text) for text in texts) <= 2000
        assert not any(MORE in text for text in texts)


def test_an_answer_beyond_the_budget_says_that_more_waits_and_the_rest_comes_first_when_the_peer_writes(
    stage: Stages,
) -> None:
    """B-002: Worked example 2."""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        whole = paragraphs(50, 500)

        bridge.say(bridge.me, "PARAGRAPHS 50 500")
        view = bridge.wechat.wait_for(lambda view: any(MORE in text for text in view.texts(bridge.me)))

        texts = view.texts(bridge.me)
        assert len(texts) == 10
        assert texts[9].endswith(MORE)
        assert sum(MORE in text for text in texts) == 1
        assert whole.startswith(spoken(texts))
        status = bridge.bridge.wait_status(lambda status: status["peers"][0]["parked_parts"] > 0)
        assert status["peers"][0]["budget_left"] == 0
        bridge.say(bridge.me, "SAY the answer to 继续")

        after = bridge.hears(bridge.me, "the answer to 继续")
        assert after[-1] == "the answer to 继续"
        assert spoken(after[:-1]) == whole
        assert bridge.bridge.status()["peers"][0]["parked_parts"] == 0
        assert all(send["outcome"] == "delivered" for send in bridge.wechat.sends())


def test_a_parked_rest_survives_a_kill(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        whole = paragraphs(50, 500)
        bridge.say(bridge.me, "PARAGRAPHS 50 500")
        bridge.wechat.wait_for(lambda view: any(MORE in text for text in view.texts(bridge.me)))
        bridge.bridge.wait_status(lambda status: status["peers"][0]["parked_parts"] > 0)

        bridge.bridge.kill()
        bridge.bridge.start()
        assert bridge.bridge.status()["peers"][0]["parked_parts"] > 0
        bridge.say(bridge.me, "SAY last")

        after = bridge.hears(bridge.me, "last")
        assert spoken(after[:-1]) == whole


def test_stop_drops_what_is_parked_when_nothing_runs(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "PARAGRAPHS 50 500")
        bridge.wechat.wait_for(lambda view: any(MORE in text for text in view.texts(bridge.me)))
        bridge.bridge.wait_status(lambda status: status["peers"][0]["parked_parts"] > 0)

        bridge.say(bridge.me, "/stop")
        bridge.bridge.wait_status(lambda status: status["peers"][0]["parked_parts"] == 0)
        bridge.say(bridge.me, "SAY next")

        texts = bridge.hears(bridge.me, "next")
        assert [text for text in texts[10:] if text.startswith("0")] == []


def test_after_a_refused_bubble_no_further_one_is_tried_and_the_rest_arrives_once_with_the_next_message(
    stage: Stages,
) -> None:
    """Worked example 3."""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.wechat.set_fault("reject_send", after=2, times=1)
        whole = paragraphs(6, 1900)

        bridge.say(bridge.me, "PARAGRAPHS 6 1900")
        status = bridge.bridge.wait_status(
            lambda status: status["counters"].get("sends_rejected", 0) == 1 and status["peers"][0]["parked_parts"] > 0
        )

        assert status["counters"]["turns_answered"] == 1
        assert len(bridge.wechat.sends()) == 3
        bridge.say(bridge.me, "SAY the new answer")
        texts = bridge.hears(bridge.me, "the new answer")
        assert texts[-1] == "the new answer"
        assert spoken(texts[:-1]) == whole
        bridge.bridge.wait_status(lambda status: status["peers"][0]["parked_parts"] == 0)


def test_killed_while_a_bubble_is_in_flight_every_bubble_is_shown_exactly_once(stage: Stages) -> None:
    """Worked example 4, the agent had finished."""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.wechat.set_fault("never_answer", path="sendmessage", when="after", after=3, times=1)
        whole = paragraphs(7, 1900)

        bridge.say(bridge.me, "PARAGRAPHS 7 1900")
        bridge.wechat.wait_for(lambda view: len(view.texts(bridge.me)) == 4)
        bridge.bridge.wait_log("message_closed .*state=answered")
        bridge.bridge.kill()
        bridge.bridge.start()

        bridge.wechat.wait_for(lambda view: spoken(view.texts(bridge.me)) == whole)
        bridge.say(bridge.me, "SAY after it")
        texts = bridge.hears(bridge.me, "after it")
        assert spoken(texts[:-1]) == whole
        counters = bridge.counters()
        assert (counters["turns_answered"], counters.get("turns_interrupted", 0)) == (2, 0)


def test_killed_while_the_agent_still_streams_what_was_sent_stands_and_one_line_says_it_was_interrupted(
    stage: Stages,
) -> None:
    """Worked example 4, the agent had not finished."""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.wechat.set_fault("never_answer", path="sendmessage", when="after", after=1, times=1)

        bridge.say(bridge.me, "PARAGRAPHS 3 1900\nWAIT")
        before = bridge.wechat.wait_for(lambda view: len(view.texts(bridge.me)) == 2).texts(bridge.me)
        bridge.bridge.kill()
        bridge.bridge.start()

        texts = bridge.hears(bridge.me, notices.interrupted().en)
        bridge.say(bridge.me, "SAY after it")
        texts = bridge.hears(bridge.me, "after it")
        assert texts[:2] == before
        assert texts.count(notices.interrupted().en) == 1
        assert len(texts) == len(set(texts))
        assert bridge.counters()["turns_interrupted"] == 1


def test_markdown_is_flattened_and_code_keeps_its_body(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()

        bridge.say(bridge.me, r"SAY # Title\n\n**bold** and `code`\n\n```python\nx = **y**\n```\n")

        (text,) = bridge.answers(bridge.me, 1)
        assert text == "Title\n\nbold and code\n\nx = **y**"


def test_a_send_that_is_accepted_without_an_id_is_counted_as_unconfirmed_and_never_sent_again(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.wechat.set_fault("no_message_id", answer="ret", delivery="delivered", times=1)

        bridge.say(bridge.me, "SAY one", "SAY two")

        assert bridge.answers(bridge.me, 2) == ["one", "two"]
        counters = bridge.counters()
        assert (counters["sends_unconfirmed"], counters["parts_sent"], len(bridge.wechat.sends())) == (1, 1, 2)
