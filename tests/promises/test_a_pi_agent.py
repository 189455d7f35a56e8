"""The real Pi through the whole bridge, offline: from a phone to the program in its sandbox, to a model server and back.

The peers' words are a script for that server (tests/fakes/model.py), or an echo.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from supervisor import notices
from tests.fakes import programs
from tests.fakes.model import FakeModel
from tests.fakes.stage import Stage

pytestmark = [pytest.mark.second, pytest.mark.timeout(400)]  # workers yield to everything else on the machine

Stages = Callable[..., Stage]

KEY = "sk-canary"
OPEN_S = 250.0  # Pi starts in two seconds, and in many more where the machine is busy: workers yield to everything
# No courtesy lines between the answers, and all the time that Pi needs, however busy the machine is.
PATIENT = "[timers]\nack_s = 600\nack_again_s = 1200\nstop_hint_s = 600\nready_s = 100\nopen_s = 300\nhang_s = 100\n"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeModel]:
    monkeypatch.setenv("TEST_MODEL_KEY", KEY)
    with FakeModel() as server:
        yield server


def settings(model: FakeModel, more: str = "") -> str:
    command = programs.pi()
    read = [str(programs.node_folder()), str(programs.pi_folder())]
    return f"""
[agent]
host = "pi"
command = {json.dumps(command)}
read = {json.dumps(read)}
model = "openai-compatible:fake-1"
base_url = "{model.url}/v1"
api_key_env = "TEST_MODEL_KEY"
{PATIENT}
{more}
"""


def also_configured(bridge: Stage, toml: str) -> None:
    """Settings that need the peers' ids."""
    file = bridge.bridge.home / "bridge.toml"
    file.write_text(file.read_text(encoding="utf-8") + "\n" + toml, encoding="utf-8")


def told(bridge: Stage, person: str, text: str) -> str:
    """All that the bot says to one message."""
    before = len(bridge.wechat.view().texts(person))
    closed = len([line for line in bridge.bridge.lines if " message_closed " in line])
    bridge.say(person, text)
    bridge.bridge.wait_log(" message_closed ", count=closed + 1, timeout_s=OPEN_S)
    return "".join(bridge.answers(person, before + 1)[before:])


def asked(bridge: Stage, person: str, text: str, title: str) -> str:
    """What the bridge asks this person on behalf of the turn that `text` starts."""
    before = len(bridge.wechat.view().texts(person))
    bridge.say(person, text)
    view = bridge.wechat.wait_for(lambda view: any(title in one for one in view.texts(person)[before:]), OPEN_S)
    return next(one for one in view.texts(person)[before:] if title in one)


def newest(model: FakeModel) -> dict[str, Any]:
    """The model's newest request."""
    return model.seen[-1].body


def test_pi_answers_from_its_sandbox_as_it_writes_and_stops_when_told(stage: Stages, model: FakeModel) -> None:
    # With all the time it needs, so that Pi is seen to stop by itself.
    with stage(agent=settings(model, "[workers]\nstop_grace_s = 60\n")) as bridge:
        bridge.begin()

        assert told(bridge, bridge.me, "good morning") == "ECHO: good morning"
        for text in ("/quit now", "/usr/bin", "!ls", "@file"):
            assert told(bridge, bridge.me, text) == f"ECHO: {text}"
        row = bridge.bridge.peer(bridge.me)
        assert (row["agent"], row["access"]) == ("pi", "workspace")
        assert row["worker"]["limits"]["network"] == "gateway"
        assert {one.key for one in model.seen} == {KEY}
        assert "phone chat" in json.dumps(newest(model)["messages"][0])

        bridge.say(bridge.me, "SLOW 100000")
        model.wait(seen=len(model.seen) + 1)
        bridge.say(bridge.me, "/stop")
        bridge.bridge.wait_log(" message_closed .* state=stopped", timeout_s=OPEN_S)
        model.wait(broke_off=1)
        assert told(bridge, bridge.me, "still there?") == "ECHO: still there?"
        bridge.bridge.wait_log(" worker_opened ")
        assert bridge.counters()["workers_started"] == 1, "stopping a turn costs no process"


def test_a_conversation_with_pi_outlives_its_worker(stage: Stages, model: FakeModel) -> None:
    with stage(agent=settings(model, "[workers]\nidle_minutes = 0.003")) as bridge:
        bridge.begin()

        told(bridge, bridge.me, "the door is blue")
        bridge.bridge.wait_log(f" worker_gone peer={bridge.me} generation=1 why=left", timeout_s=OPEN_S)
        told(bridge, bridge.me, "what colour?")

        bridge.bridge.wait_log(" worker_opened .* generation=2 .*session=resumed")
        assert "the door is blue" in json.dumps(newest(model)["messages"])


def test_each_peers_pi_has_the_tools_of_that_peer(stage: Stages, model: FakeModel) -> None:
    with stage(agent=settings(model), guests=2) as bridge:
        bare, reader = bridge.guests
        also_configured(bridge, f'[peers."{bare}"]\naccess = "workspace"\ntools = []\n')
        also_configured(bridge, f'[peers."{reader}"]\ntools = ["read"]\n')
        bridge.begin()

        for name in ("bash", "read", "write", "send_file", "ask_user_question"):
            assert f"Tool {name} not found" in told(bridge, bare, f"CALL {name} {{}}")
        assert "tools" not in newest(model)
        told(bridge, reader, "hello")
        assert [tool["function"]["name"] for tool in newest(model)["tools"]] == ["read", "ls"]
        assert "not found" in told(bridge, reader, 'CALL bash {"command":"id"}')


def test_a_peer_grants_and_refuses_in_the_chat_what_pi_wants_to_do(stage: Stages, model: FakeModel) -> None:
    with stage(agent=settings(model)) as bridge:
        bridge.begin()

        question = asked(bridge, bridge.me, 'CALL bash {"command":"touch made; echo done"}', "permission: bash")
        assert "touch made; echo done" in question
        assert told(bridge, bridge.me, "1") == "RESULT: done"
        assert (bridge.workspace(bridge.me) / "made").exists()

        asked(bridge, bridge.me, 'CALL bash {"command":"touch never"}', "permission: bash")
        assert "did not allow" in told(bridge, bridge.me, "2")

        question = asked(
            bridge, bridge.me, 'CALL ask_user_question {"question":"颜色？","options":["红","蓝"]}', "颜色？"
        )
        assert "红" in question
        assert told(bridge, bridge.me, "第二个") == "RESULT: The user answered: 蓝"

        asked(bridge, bridge.me, 'CALL bash {"command":"touch never"}', "permission: bash")
        assert told(bridge, bridge.me, "/stop") == notices.stopped().en
        assert told(bridge, bridge.me, "hello") == "ECHO: hello"
        assert not (bridge.workspace(bridge.me) / "never").exists()


def test_a_plan_of_pis_is_reviewed_in_the_chat(stage: Stages, model: FakeModel) -> None:
    plan, change = 'CALL exit_plan_mode {"title":"Tidy up","plan":"1. look"}', 'CALL write {"path":"a","content":"b"}'
    with stage(agent=settings(model)) as bridge:
        bridge.begin()

        question = asked(bridge, bridge.me, plan, "Tidy up")
        assert "1. look" in question
        assert "wants to go on planning" in told(bridge, bridge.me, "2")
        assert "Plan mode is on" in told(bridge, bridge.me, change)

        asked(bridge, bridge.me, plan, "Tidy up")
        assert "look in the cellar too" in told(bridge, bridge.me, "look in the cellar too")
        asked(bridge, bridge.me, plan, "Tidy up")
        assert "approved the plan" in told(bridge, bridge.me, "1")
        question = asked(bridge, bridge.me, change, "permission: write")
        assert "a\nb" in question
        told(bridge, bridge.me, "yes")
        assert (bridge.workspace(bridge.me) / "a").read_text() == "b"
        assert {kept.read_text() for kept in bridge.workspace(bridge.me).glob("plan-*.md")} == {"1. look\n"}
