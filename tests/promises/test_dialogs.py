"""An agent's questions through the whole bridge: from the program to the phone, and the answer back.

The peers' words are a script for tests/fakes/pi_agent.py and tests/fakes/acp_agent.py.
"""

import base64
import json
import sys
from collections.abc import Callable

from protocol.ids import AccountId, PeerId, PeerKey
from protocol.to_supervisor import DialogKind, DialogPurpose
from supervisor import notices
from supervisor.core.answers import Question, Why
from supervisor.home import Home
from supervisor.store import AddRule, Store
from tests.fakes.bridge import ROOT
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]

SURE = Question(DialogKind.CONFIRM, DialogPurpose.QUESTION, "Sure?", "Really?")

PATIENT = "[timers]\nack_s = 600\nack_again_s = 1200\nstop_hint_s = 600\n"
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(64)


def asking(more: str = "") -> str:
    program = f'["{sys.executable}", "{ROOT}/tests/fakes/pi_agent.py"]'
    return f'[agent]\nhost = "pi"\ncommand = {program}\nread = ["{ROOT}"]\nmodel = "openai:m"\n{more}\n'


def asked(bridge: Stage, person: str, text: str, begins: str) -> str:
    """Say something, and wait for the question that it leads to."""
    before = len(bridge.wechat.view().texts(person))
    bridge.say(person, text)
    question = bridge.answers(person, before + 1)[-1]
    assert question.startswith(begins), question
    return question


def shown(bridge: Stage, person: str, begins: str) -> list[str]:
    """All bubbles, once the last one is this question."""
    view = bridge.wechat.wait_for(lambda view: (view.texts(person) or [""])[-1].startswith(begins))
    return view.texts(person)


def told(bridge: Stage, person: str, text: str) -> str:
    """Say something; the next bubble."""
    before = len(bridge.wechat.view().texts(person))
    bridge.say(person, text)
    return bridge.answers(person, before + 1)[before]


def always_answered(bridge: Stage, rule: str) -> None:
    """While the bridge does not run: as if `me` had answered so. Only the embedded agent offers it."""
    store, _ = Store.open(Home(bridge.bridge.home).journal)
    store.apply([AddRule(PeerKey(AccountId(bridge.me), PeerId(bridge.me)), rule, 1.0)])
    store.close()


def taken_back(bridge: Stage, rule: str) -> None:
    """bridge-ctl rules and revoke"""
    (row,) = json.loads(bridge.bridge.ctl("rules", bridge.me, "--json").stdout)
    assert (row["peer"], row["rule"], row["text"]) == (bridge.me, 1, rule)
    assert bridge.bridge.ctl("revoke", bridge.me, "7", check=False).returncode == 1
    assert "asked again" in bridge.bridge.ctl("revoke", bridge.me, "1").stdout
    assert bridge.bridge.ctl("rules").stdout == "nothing was answered with always\n"


def test_a_question_is_answered_in_its_own_chat_while_commands_and_pictures_find_their_way(stage: Stages) -> None:
    """B-020: each input while a turn waits, in both languages; the other peer's words answer nothing."""
    snippet = '[snippets]\nhello = "SAY hello"\n'
    with stage(guests=1, agent=asking(), settings=PATIENT + snippet) as bridge:
        (guest,) = bridge.guests
        bridge.begin()
        told(bridge, guest, "你好，开始吧")

        english = asked(
            bridge, bridge.me, "PERMIT touch zz", "This needs your permission: bash\n\ntouch zz\n\n1. Yes\n2. No"
        )
        chinese = asked(bridge, guest, "PERMIT touch 笔记", "这一步要你同意：bash\n\ntouch 笔记\n\n1. 可以\n2. 不可以")
        status = bridge.bridge.status()
        assert {row["state"] for row in status["peers"]} == {"asking"}
        assert [(row["kind"], row["title"]) for row in status["dialogs"]] == [("confirm", "bash")] * 2
        assert all(170 < row["expires_in_s"] <= 180 for row in status["dialogs"])
        assert "0 running, 0 waiting, 2 asking" in bridge.bridge.ctl().stdout

        assert "Waiting for your answer: bash" in told(bridge, bridge.me, "/status")
        assert told(bridge, bridge.me, "yes").startswith("This one needs a clear choice")
        assert told(bridge, guest, "好").startswith("这一步要你明确选一个")
        before = len(bridge.wechat.view().texts(bridge.me))
        bridge.wechat.attach(bridge.me, "image", PICTURE, name="a.png")
        waits = bridge.wechat.wait_for(lambda view: notices.queued_behind_question().en in view.texts(bridge.me))
        assert len(waits.texts(bridge.me)) > before
        assert {row["state"] for row in bridge.bridge.status()["peers"]} == {"asking"}

        assert told(bridge, bridge.me, "/hello") == notices.queued_behind_question().en
        assert told(bridge, bridge.me, "/new") == notices.new_while_running().en
        assert '{"confirmed": true}' in bridge.hears(bridge.me, told(bridge, bridge.me, "1"))
        assert told(bridge, guest, "２") == '{"confirmed": false}'
        bridge.bridge.wait_status(lambda status: status["counters"]["turns_answered"] == 5)
        assert english != chinese and bridge.counters()["turns_stopped"] == 0


def test_every_kind_of_question_takes_its_kind_of_answer(stage: Stages) -> None:
    """B-026: two at once are asked one by one."""
    with stage(agent=asking(), settings=PATIENT) as bridge:
        me = bridge.me
        bridge.begin()

        asked(bridge, me, "SELECT", "Colour?\n\n1. red\n2. blue\n\nReply with a number")
        assert told(bridge, me, "purple").startswith("I couldn't tell which option you mean.")
        assert told(bridge, me, "Blue") == '{"value": "blue"}'
        asked(bridge, me, "SELECT other", "Colour?\n\n1. red\n2. blue\n3. Something else")
        assert told(bridge, me, "3") == notices.question_again_lines(SURE, Why.TYPE_IT).en
        assert told(bridge, me, "2 shades of grey") == '{"value": "2 shades of grey"}'
        asked(bridge, me, "CONFIRM", "Sure?\n\nReally?\n\nReply yes or no")
        assert told(bridge, me, "no") == '{"confirmed": false}'
        asked(bridge, me, "INPUT", "Name?\n\nfirst and last")
        assert told(bridge, me, "/usr/bin") == '{"value": "/usr/bin"}'
        asked(bridge, me, "EDITOR", "Edit\n\nIt now reads:\nold\n\n")
        assert told(bridge, me, "cancel") == '{"cancelled": true}'
        bridge.say(me, "PLAN")
        shown(bridge, me, "The plan is ready: T\n\n1. a\n\nStill in plan")
        plan = bridge.wechat.bubbles(me)[-2]
        assert plan.kind == "file" and bridge.wechat.media(plan) == b"1. a", "the whole of it, ahead of the question"
        assert told(bridge, me, "write the tests first") == '{"value": "changes:write the tests first"}'

        first = asked(bridge, me, "TWICE", "")
        second = told(bridge, me, "one")
        answer = told(bridge, me, "two")
        assert {first.split("\n")[0], second.split("\n")[0]} == {"One?", "Two?"}
        assert answer == ('{"value": "two"}' if second.startswith("Two?") else '{"value": "one"}')

        asked(bridge, me, "CONFIRM", "Sure?")
        bridge.bridge.kill()
        always_answered(bridge, "bash git status")
        bridge.bridge.start()
        bridge.hears(me, notices.interrupted().en)
        assert told(bridge, me, "yes") == "You said: yes", "the question died with its worker"
        taken_back(bridge, "bash git status")
        asked(bridge, me, "CONFIRM", "Sure?")
        assert bridge.bridge.stop() == 0
        assert bridge.wechat.view().texts(me)[-2:] == [notices.question_withdrawn().en, '{"cancelled": true}']


PERMISSIONS = {  # script, question, a bare yes and what it leads to, a no
    "en": (
        "TWICE",
        "This needs your permission: touch zz\n\n1. Yes\n2. No\n\nPlease reply with the number",
        "yes",
        "This one needs a clear choice",
        "no",
    ),
    "zh": (
        "SAY 好\nTWICE",
        "这一步要你同意：touch zz\n\n1. 可以\n2. 不可以\n\n请回数字",
        "好",
        "这一步要你明确选一个",
        "否",
    ),
}


def test_what_an_agent_over_acp_wants_to_do_is_allowed_or_refused_in_the_peers_language(stage: Stages) -> None:
    """B-014, B-026, B-037: two at once are asked one by one, and the options' own ids reach the agent."""
    with stage(guests=1, agent=FAKE_AGENT, settings=PATIENT) as bridge:
        bridge.begin()

        for person, (script, question, bare, again, declined) in zip(
            (bridge.me, *bridge.guests), PERMISSIONS.values(), strict=True
        ):
            bridge.say(person, script)
            first = shown(bridge, person, question)
            assert told(bridge, person, bare).startswith(again)
            bridge.say(person, "1")
            second = bridge.answers(person, len(first) + 2)
            assert second[-1].startswith(question)
            bridge.say(person, declined)

            assert bridge.answers(person, len(second) + 1)[-1] == '{"first": "yes", "second": "no"}'


def test_whatever_ends_a_question_ends_it_once_and_what_is_written_then_is_a_message(stage: Stages) -> None:
    """Withdrawn, stopped, its worker killed, its peer denied (B-021), its account paused; and cancelled where it cannot be
    sent (B-035)."""
    with stage(guests=1, agent=asking(), settings=f"{PATIENT}[workers]\nconcurrency = 1\n") as bridge:
        me, (guest,) = bridge.me, bridge.guests
        bridge.begin()

        asked(bridge, me, "CONFIRM", "Sure?")
        assert told(bridge, guest, "SAY hi") == "hi", "a turn that waits for its peer holds no slot"
        assert "withdrawn" in bridge.bridge.ctl("cancel", me).stdout
        bridge.hears(me, '{"cancelled": true}')
        assert notices.question_withdrawn().en in bridge.wechat.view().texts(me)
        assert "nothing was being asked" in bridge.bridge.ctl("cancel", me).stdout

        asked(bridge, me, "CONFIRM", "Sure?")
        assert told(bridge, me, "/stop") == notices.stopped().en
        assert told(bridge, me, "yes") == "You said: yes"

        asked(bridge, me, "CONFIRM", "Sure?")
        bridge.worker(me).kill()
        bridge.hears(me, notices.failed().en)
        assert told(bridge, me, "no") == "You said: no"

        bridge.wechat.set_fault("reject_send", times=1)
        bridge.say(me, "CONFIRM")
        bridge.bridge.wait_log("dialog_closed .*outcome=unsent")
        bridge.bridge.wait_status(lambda status: not status["dialogs"] and status["counters"]["sends_rejected"] == 1)
        bridge.say(me, "SAY more")
        assert bridge.hears(me, "more")[-2:] == ['{"cancelled": true}', "more"]

        question = asked(bridge, guest, "CONFIRM", "Sure?")
        bridge.bridge.ctl("deny", guest, "--yes")
        bridge.bridge.wait_log("dialog_closed .*outcome=turn_over", count=3)

        asked(bridge, me, "CONFIRM", "Sure?")
        before = len(bridge.wechat.view().texts(me))
        bridge.bridge.ctl("pause")
        assert bridge.answers(me, before + 2)[before:] == [notices.question_withdrawn().en, '{"cancelled": true}']
        assert bridge.wechat.view().texts(guest)[-1] == question, "who is denied hears nothing more"
        assert bridge.bridge.status()["dialogs"] == []


def test_an_unanswered_question_ends_after_its_time_and_the_queue_moves(stage: Stages) -> None:
    """B-066"""
    with stage(agent=asking("dialog_minutes = 0.05"), settings=PATIENT) as bridge:
        bridge.begin()
        asked(bridge, bridge.me, "CONFIRM", "Sure?")
        attachment = {"kind": "file", "data": base64.b64encode(b"%PDF").decode(), "name": "a.pdf"}
        bridge.wechat.say(bridge.me, "SAY read it", attachment=attachment)

        texts = bridge.hears(bridge.me, "read it")

        assert sum(text.startswith("Still waiting for your answer: Sure?") for text in texts) == 1
        assert texts.count(notices.question_expired(SURE).en) == 1
        assert '{"cancelled": true}' in texts
