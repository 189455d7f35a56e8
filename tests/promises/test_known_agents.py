"""Real agents that speak ACP through the whole bridge, offline, by the settings that the README names for them.

As for Pi (test_a_pi_agent.py), the peers' words are an echo of the model server's.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.fakes import programs
from tests.fakes.model import FakeModel
from tests.fakes.stage import Stage
from tests.promises.test_a_pi_agent import KEY, OPEN_S, PATIENT

pytestmark = [pytest.mark.second, pytest.mark.timeout(400)]

Stages = Callable[..., Stage]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeModel]:
    monkeypatch.setenv("TEST_MODEL_KEY", KEY)
    with FakeModel() as server:
        yield server


def settings(model: FakeModel, host: str) -> str:
    """Its program is found in the supervisor's PATH, as an operator's is."""
    return f"""
[agent]
host = "{host}"
model = "openai-compatible:fake-1"
base_url = "{model.url}/v1"
api_key_env = "TEST_MODEL_KEY"
{PATIENT}
"""


def test_hermes_answers_from_its_sandbox(stage: Stages, model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs.hermes().parent), prepend=":")
    with stage(agent=settings(model, "hermes")) as bridge:
        bridge.begin()

        bridge.say(bridge.me, "good morning")
        bridge.wechat.wait_for(lambda view: "good morning" in "".join(view.texts(bridge.me)), OPEN_S)

        bridge.bridge.wait_log(" worker_opened .* agent=hermes-agent")
        row = bridge.bridge.peer(bridge.me)
        assert (row["agent"], row["access"]) == ("hermes", "workspace")
        assert row["worker"]["limits"]["network"] == "gateway"
        assert {one.key for one in model.seen} == {KEY}
