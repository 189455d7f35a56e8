from dataclasses import fields

from protocol.content import Access
from supervisor.core.policy import Agent, AgentOverrides, PeerOverrides


def test_every_key_of_agent_can_be_overridden() -> None:
    assert [f.name for f in fields(AgentOverrides)] == [f.name for f in fields(Agent)]


def test_what_is_not_set_leaves_the_value_and_what_is_set_wins_even_when_it_is_empty() -> None:
    agent = Agent(host="acp", command=("goose",), model="m", footer=True)

    changed = agent.overridden(AgentOverrides(command=(), footer=False))

    assert changed == Agent(host="acp", command=(), model="m", footer=False)


def test_overrides_of_one_peer_merge_key_by_key_and_so_does_their_agent() -> None:
    by_hand = PeerOverrides(tools=("read",), access=Access.FULL, agent=AgentOverrides(host="acp", command=("a",)))
    by_allow = PeerOverrides(admitted=True, tools=(), agent=AgentOverrides(command=("b",)))

    merged = by_hand.overridden(by_allow)

    assert merged == PeerOverrides(
        admitted=True, tools=(), access=Access.FULL, agent=AgentOverrides(host="acp", command=("b",))
    )


def test_a_peer_with_another_host_does_not_inherit_a_command_that_is_not_its_own() -> None:
    agent = Agent(host="pi", command=("node", "pi.js"), model="openai:m")

    assert agent.overridden(AgentOverrides(host="opencode")).program == ("opencode", "acp")
    assert agent.overridden(AgentOverrides(host="opencode", command=("/o",))).program == ("/o",)
    assert agent.overridden(AgentOverrides(host="pi")).program == ("node", "pi.js")
    assert agent.overridden(AgentOverrides(host="opencode")).model == "openai:m"
    by_hand = AgentOverrides(host="acp", command=("mine",))
    assert by_hand.overridden(AgentOverrides(host="hermes")) == AgentOverrides(host="hermes")


def test_a_known_agent_has_a_usual_key_unless_a_server_is_named() -> None:
    assert Agent(host="claude").key_variable == "ANTHROPIC_API_KEY"
    assert Agent(host="claude", api_key_env="MINE").key_variable == "MINE"
    assert Agent(host="claude", base_url="http://127.0.0.1:1").key_variable == ""
    assert Agent(host="acp").key_variable == ""
