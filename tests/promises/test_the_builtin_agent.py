"""The built-in agent through the whole bridge: from a phone to a model behind the gateway, and back, inside its sandbox."""

import json
from collections.abc import Callable, Iterator

import pytest

from supervisor import notices
from tests.fakes.model import FakeModel
from tests.fakes.stage import Stage

Stages = Callable[..., Stage]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(200)
QUIET = "[timers]\nack_s = 600\nack_again_s = 1200\nstop_hint_s = 600\n"


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with FakeModel() as server:
        yield server


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", "sk-canary")


def agent(model: FakeModel, more: str = "") -> str:
    return (
        f'[agent]\nhost = "builtin"\nmodel = "openai-compatible:fake-1"\nbase_url = "{model.url}/v1"\n'
        f'api_key_env = "TEST_MODEL_KEY"\n{more}\n{QUIET}'
    )


def call(tool: str, **arguments: object) -> str:
    return f"CALL {tool} {json.dumps(arguments)}"


def test_it_answers_asks_does_remembers_and_is_resumed(stage: Stages, model: FakeModel) -> None:
    with stage(agent=agent(model), settings="[workers]\nidle_minutes = 0.03\n") as bridge:
        bridge.begin()
        bridge.answer_to_is(bridge.me, "good morning", "ECHO: good morning")

        bridge.say(bridge.me, call("bash", command="echo $((6*7)) > answer.txt; cat answer.txt"))
        question = bridge.answers(bridge.me, 2)[1]
        assert "echo $((6*7))" in question and "1" in question
        bridge.say(bridge.me, "1")
        assert bridge.answers(bridge.me, 3)[2] == "RESULT: 42"
        assert (bridge.workspace(bridge.me) / "answer.txt").read_text() == "42\n"

        bridge.say(bridge.me, call("write", path="no.txt", content="x"))
        bridge.answers(bridge.me, 4)
        bridge.say(bridge.me, "no")
        assert "did not allow" in bridge.answers(bridge.me, 5)[4]
        assert not (bridge.workspace(bridge.me) / "no.txt").exists()

        bridge.bridge.wait_log(f"worker_gone peer={bridge.me} .* why=left")
        bridge.answer_to_is(bridge.me, "still there?", "ECHO: still there?")
        said = json.dumps(model.seen[-1].body["messages"])
        assert "good morning" in said and "echo $((6*7))" in said
        assert bridge.bridge.peer(bridge.me)["agent"] == "builtin"


def test_a_file_that_it_made_arrives_on_the_phone_behind_its_caption(stage: Stages, model: FakeModel) -> None:
    with stage(agent=agent(model, 'approvals = "allow"')) as bridge:
        bridge.begin()
        bridge.say(bridge.me, call("write", path="report.txt", content="all is well"))
        bridge.answers(bridge.me, 1)

        bridge.say(bridge.me, call("send_file", path="report.txt", caption="here it is"))

        view = bridge.wechat.wait_for(lambda view: [b for b in view.bubbles(bridge.me) if b.kind == "file"])
        (file,) = [bubble for bubble in view.bubbles(bridge.me) if bubble.kind == "file"]
        assert bridge.wechat.media(file) == b"all is well"
        bridge.hears(bridge.me, "RESULT: The file was sent.")
        assert "here it is" in bridge.wechat.view().texts(bridge.me)

        picture = bridge.workspace(bridge.me) / "p.png"
        picture.write_bytes(PNG)
        picture.chmod(0o644)
        bridge.say(bridge.me, call("send", image="p.png"))
        bridge.hears(bridge.me, 'RESULT: {"sent": true, "state": "sent", "error": null}')
        (sent,) = [one for one in bridge.wechat.bubbles(bridge.me) if one.kind == "image"]
        assert bridge.wechat.media(sent) == PNG


def test_an_always_is_kept_listed_and_taken_back(stage: Stages, model: FakeModel) -> None:
    with stage(agent=agent(model)) as bridge:
        bridge.begin()
        script = call("bash", command="echo hi")
        bridge.say(bridge.me, script)
        bridge.answers(bridge.me, 1)
        bridge.say(bridge.me, "2")
        assert bridge.answers(bridge.me, 2)[1] == "RESULT: hi"
        bridge.say(bridge.me, script)
        assert bridge.answers(bridge.me, 3)[2] == "RESULT: hi"

        assert "bash: echo hi" in bridge.bridge.ctl("rules").stdout
        (rule,) = json.loads(bridge.bridge.ctl("rules", bridge.me, "--json").stdout)
        bridge.bridge.ctl("revoke", bridge.me, str(rule.get("number", rule.get("rule"))))
        bridge.say(bridge.me, script)
        assert bridge.answers(bridge.me, 4)[3] != "RESULT: hi"


def test_without_a_model_the_peer_gets_one_line_and_doctor_says_what_to_set(stage: Stages) -> None:
    with stage(agent=f'[agent]\nhost = "builtin"\n{QUIET}') as bridge:
        bridge.begin()
        bridge.say(bridge.me, "hello")

        assert bridge.answers(bridge.me, 1) == [notices.not_configured("agent.model").en]
        told = bridge.bridge.ctl("doctor", check=False).stdout
        assert "[agent] model" in told or "agent.model" in told
