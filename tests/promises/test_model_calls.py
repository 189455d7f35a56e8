"""An agent's model: reached through the gateway alone, with a key that no worker ever sees, within the day's allowance."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from supervisor import notices
from tests.fakes.memory import memory_holds
from tests.fakes.model import FakeModel
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]

KEY = "sk-canary-nobody-may-see"
QUIET = "[timers]\nack_s = 600\nack_again_s = 1200\nstop_hint_s = 600\n"


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with FakeModel() as server:
        yield server


def agent(model: FakeModel, *, more: str = "") -> str:
    settings = f'model = "openai-compatible:fake-1"\nbase_url = "{model.url}/v1"\napi_key_env = "TEST_MODEL_KEY"\n'
    return f"{FAKE_AGENT}{settings}{more}\n{QUIET}"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the supervisor's environment, as an operator would set it."""
    monkeypatch.setenv("TEST_MODEL_KEY", KEY)


def gateway_of(bridge: Stage) -> psutil.Process:
    """Of the supervisor's children it is the one that is no zygote."""
    return next(
        p for p in psutil.Process(bridge.bridge.pid).children() if "supervisor.gateway" in " ".join(p.cmdline())
    )


def problems(bridge: Stage) -> list[str]:
    """What bare `bridge-ctl` names beside the counts."""
    return bridge.bridge.ctl("status").stdout.splitlines()


def test_a_models_words_reach_the_phone_and_its_key_no_worker_and_no_log(stage: Stages, model: FakeModel) -> None:
    with stage(agent=agent(model)) as bridge:
        bridge.begin()

        bridge.say(bridge.me, "MODEL good morning")
        assert bridge.answers(bridge.me, 1) == ["ECHO: good morning[over]"]
        bridge.say(bridge.me, "ENVIRONMENT")
        seen = json.loads("".join(bridge.answers(bridge.me, 2)[1:]))
        bridge.say(bridge.me, "MODEL LEAK")
        assert bridge.answers(bridge.me, 3)[-1].startswith("Bearer key")  # [key], which looks like a link

        assert [one.key for one in model.seen] == [KEY, KEY]
        assert seen["OPENAI_API_KEY"] == seen["ANTHROPIC_API_KEY"] == seen["GEMINI_API_KEY"] != KEY
        assert seen["OPENAI_BASE_URL"] == seen["ANTHROPIC_BASE_URL"] + "/v1"
        assert not any("proxy" in name.lower() for name in set(seen) - {"NO_PROXY", "no_proxy"})
        row = bridge.bridge.peer(bridge.me)["worker"]
        assert row["limits"]["network"] == "gateway" and "net_ns" in row["isolation"]
        supervisor, gateway = psutil.Process(bridge.bridge.pid), gateway_of(bridge)
        others = [p for p in supervisor.children(recursive=True) if p.pid != gateway.pid]
        assert len(others) >= 4  # zygote, nanny, worker, agent program
        for process in (*others, gateway):
            assert KEY not in " ".join(process.cmdline())
            if os.geteuid() == 0:
                assert KEY.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()
        if os.geteuid() == 0:
            assert memory_holds(gateway.pid, KEY.encode())  # the search finds what is there
            assert not any(memory_holds(process.pid, KEY.encode()) for process in others)
        assert not any(KEY in line for line in bridge.bridge.lines)


def test_an_agent_reaches_its_model_through_the_gateway_and_in_no_other_way(stage: Stages, model: FakeModel) -> None:
    with stage(agent=agent(model)) as bridge:
        bridge.begin()

        bridge.say(bridge.me, f"REACH 127.0.0.1 {model.port}")

        assert bridge.answers(bridge.me, 1)[0].startswith("refused: ")
        assert model.seen == []


def test_the_days_tokens_end_a_turn_with_one_line_and_turn_the_next_message_away(
    stage: Stages, model: FakeModel
) -> None:
    model.usage = (600, 500)
    with stage(agent=agent(model), guests=1, settings="[guests]\nmax_tokens_per_day = 2000\n") as bridge:
        bridge.begin()
        (guest,) = bridge.guests

        bridge.say(guest, "MODEL one\nMODEL two\nMODEL three\nMODEL four")
        texts = bridge.answers(guest, 2)
        bridge.bridge.wait_log("message_closed .* state=limited")
        bridge.say(guest, "MODEL five")
        bridge.bridge.wait_log("message_turned_away .* why=token_budget")
        bridge.say(bridge.me, "MODEL mine")
        assert bridge.answers(bridge.me, 1) == ["ECHO: mine[over]"]

        assert texts[0].replace("\n", "") == "ECHO: one[over]ECHO: two[over]"
        assert notices.token_budget(wait_s=0).key == "token_budget" and "usage limit" in texts[1]
        assert "403" not in "".join(texts)
        assert len(model.seen) == 3  # two of the guest's, and mine
        assert len(bridge.answers(guest, 3)) == 3
        bridge.bridge.stop()
        bridge.bridge.start()
        bridge.say(guest, "MODEL six")
        bridge.bridge.wait_log("message_turned_away .* why=token_budget")  # a restart is no new day
        assert len(model.seen) == 3


def test_stop_ends_the_request_that_the_model_is_still_answering(stage: Stages, model: FakeModel) -> None:
    with stage(agent=agent(model)) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "MODEL SLOW 100000")
        model.wait(seen=1)

        bridge.say(bridge.me, "/stop")

        assert notices.stopped(waiting=0).en in bridge.hears(bridge.me, notices.stopped(waiting=0).en)
        model.wait(broke_off=1)


def test_a_killed_worker_ends_its_request_too(stage: Stages, model: FakeModel) -> None:
    with stage(agent=agent(model)) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "MODEL SLOW 100000")
        model.wait(seen=1)

        bridge.worker(bridge.me).kill()

        model.wait(broke_off=1)


def test_with_the_supervisor_the_gateway_and_its_calls_are_gone(stage: Stages, model: FakeModel) -> None:
    with stage(agent=agent(model)) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "MODEL SLOW 100000")
        model.wait(seen=1)
        gateway = gateway_of(bridge)

        bridge.bridge.kill()  # nothing of its tree is left after it, or it raises

        assert not gateway.is_running() or gateway.status() == psutil.STATUS_ZOMBIE
        model.wait(broke_off=1)


def test_a_killed_gateway_costs_its_calls_and_nothing_else(stage: Stages, model: FakeModel) -> None:
    with stage(agent=agent(model)) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "MODEL one")
        bridge.answers(bridge.me, 1)

        gateway_of(bridge).send_signal(signal.SIGKILL)
        bridge.bridge.wait_log("gateway_ended ")
        bridge.say(bridge.me, "MODEL two")

        assert bridge.answers(bridge.me, 2)[1] == "ECHO: two[over]"
        assert bridge.bridge.peer(bridge.me)["worker"]["generation"] == 1


def test_without_a_key_the_agent_is_told_and_the_operator_reads_which(
    stage: Stages, model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_MODEL_KEY")
    with stage(agent=agent(model)) as bridge:
        bridge.begin()

        bridge.say(bridge.me, "MODEL hello", "just talk")

        first, second = bridge.answers(bridge.me, 2)
        assert first.startswith("[403 not configured")
        assert second == "You said: just talk"
        assert any("TEST_MODEL_KEY" in line for line in problems(bridge))
        doctor = bridge.bridge.ctl("doctor", "--json", check=False)
        assert "TEST_MODEL_KEY" in doctor.stdout and doctor.returncode == 1


def test_a_key_that_the_model_server_refuses_is_named_until_it_works(stage: Stages, model: FakeModel) -> None:
    with stage(agent=agent(model)) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "MODEL FAIL 401")
        bridge.answers(bridge.me, 1)
        assert any("refuses the key (401)" in line for line in problems(bridge))

        bridge.say(bridge.me, "MODEL hello")

        assert bridge.answers(bridge.me, 2)[1] == "ECHO: hello[over]"
        assert not any("refuses the key" in line for line in problems(bridge))


def test_with_network_the_agent_has_a_proxy_and_this_machine_stays_out_of_reach(
    stage: Stages, model: FakeModel
) -> None:
    with stage(agent=agent(model)) as bridge:
        file = bridge.bridge.home / "bridge.toml"
        file.write_text(f'{file.read_text()}\n[peers."{bridge.me}"]\nnetwork = true\n')
        bridge.begin()

        bridge.say(bridge.me, "ENVIRONMENT")
        seen = json.loads("".join(bridge.answers(bridge.me, 1)))
        bridge.say(bridge.me, f"TUNNEL 127.0.0.1:{model.port}")
        assert "403" in bridge.answers(bridge.me, len(bridge.wechat.view().texts(bridge.me)) + 1)[-1]

        assert seen["HTTPS_PROXY"] == seen["https_proxy"] == seen["HTTP_PROXY"]
        assert seen["HTTPS_PROXY"] == seen["ANTHROPIC_BASE_URL"].replace("//", f"//worker:{seen['OPENAI_API_KEY']}@")
        assert seen["NODE_USE_ENV_PROXY"] == "1" and "127.0.0.1" in seen["NO_PROXY"]
        assert bridge.bridge.peer(bridge.me)["worker"]["limits"]["network"] == "proxy"
        assert model.seen == []


def test_an_agent_that_talks_to_no_model_costs_no_gateway(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "hello")

        assert not any("supervisor.gateway" in " ".join(p.cmdline()) for p in bridge.bridge.tree())
        assert bridge.bridge.peer(bridge.me)["worker"]["limits"]["network"] == "none"
