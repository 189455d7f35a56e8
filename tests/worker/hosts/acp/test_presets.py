"""What known agents are told in files, variables and their session."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol import agents
from protocol.agents import Approvals
from protocol.content import Access
from worker.hosts.acp.presets import Preset, model_name, opencode_permissions, preset_for, write_files
from worker.hosts.base import HostError, SessionSpec

KNOWN = sorted(name for name, facts in agents.HOSTS.items() if facts.driver == "acp")


def spec(agent: str, **more: Any) -> SessionSpec:
    base = SessionSpec(
        session_dir=Path("/s"),
        workspace=Path("/w"),
        session_id=None,
        access=Access.WORKSPACE,
        command=("program",),
        env=(("HERMES_HOME", "/elsewhere"), ("COLOUR", "blue")),
        model="openai-compatible:fake-1",
        contract="phone 你好\n",
        gateway_url="http://127.0.0.1:1",
        token='t"o\\k',
        agent=agent,
    )
    return replace(base, **more)


@pytest.mark.parametrize("agent", KNOWN)
def test_every_known_agent_is_told_where_models_are_and_nothing_that_is_not_below_its_home(agent: str) -> None:
    preset = preset_for(spec(agent))

    told = preset.applied_to(spec(agent))
    assert preset != Preset()
    assert ("COLOUR", "blue") in told.env
    for name, text in preset.files.items():
        assert not name.startswith("/") and ".." not in name
        if name.endswith(".toml"):
            tomllib.loads(text)
        elif name.endswith((".json", ".yaml")):
            json.loads(text)
    for value in preset.env.values():
        assert not value.startswith("/") or value.startswith("/s/home/")


@pytest.mark.parametrize("agent", KNOWN)
def test_an_agent_carries_the_contract_exactly_where_its_row_says_so(agent: str) -> None:
    preset = preset_for(spec(agent))

    carried = spec(agent).contract in (*preset.files.values(), *_texts(preset.session_meta))
    assert carried is agents.HOSTS[agent].carries_contract


def _texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    return [value] if isinstance(value, str) else []


def test_our_variables_win_over_the_operators() -> None:
    assert dict(preset_for(spec("hermes")).applied_to(spec("hermes")).env)["HERMES_HOME"] == "/s/home/.hermes"


def test_an_agent_that_is_not_known_is_told_nothing() -> None:
    for name in ("acp", "", "pi"):
        assert preset_for(spec(name)) == Preset()


def test_a_model_loses_its_provider_and_nothing_else() -> None:
    assert model_name("openai-compatible:fake-1") == "fake-1"
    assert model_name("anthropic:claude") == "claude"
    assert model_name("qwen3:8b") == "qwen3:8b"
    assert model_name("") == ""


def test_values_reach_a_toml_file_whole() -> None:
    config = tomllib.loads(preset_for(spec("kimi")).files[".kimi-code/config.toml"])

    assert config["providers"]["gateway"] == {
        "type": "openai",
        "base_url": "http://127.0.0.1:1/v1",
        "api_key": 't"o\\k',
    }
    assert config["models"]["gateway"]["model"] == "fake-1"


def test_opencode_asks_before_it_acts_unless_the_operator_wants_otherwise() -> None:
    assert opencode_permissions(spec("opencode"))["bash"] == "ask"
    assert opencode_permissions(spec("opencode", approvals=Approvals.ALLOW))["bash"] == "allow"


def test_a_list_of_tools_is_what_opencode_is_left_with() -> None:
    assert opencode_permissions(spec("opencode", tools=frozenset())) == {"*": "deny"}
    narrowed = opencode_permissions(spec("opencode", tools=frozenset({"read", "bash"})))
    assert list(narrowed)[0] == "*"
    assert narrowed == {"*": "deny", "read": "allow", "list": "allow", "glob": "allow", "grep": "allow", "bash": "ask"}
    reading = opencode_permissions(spec("opencode", access=Access.READONLY, tools=frozenset({"read", "bash"})))
    assert "bash" not in reading


def test_files_are_written_anew_and_private(tmp_path: Path) -> None:
    write_files(tmp_path, {".a/b": "one"})
    write_files(tmp_path, {".a/b": "two"})

    assert (tmp_path / "home/.a/b").read_text() == "two"
    assert [path.name for path in (tmp_path / "home/.a").iterdir()] == ["b"]
    assert (tmp_path / "home/.a").stat().st_mode & 0o777 == 0o700


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")

    with pytest.raises(HostError, match="cannot be written"):
        write_files(tmp_path, {".a/b": "one"})
