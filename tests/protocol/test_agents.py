"""The table of agents."""

from protocol.agents import HOSTS, TOOLS, driver_of


def test_a_known_agent_is_driven_by_the_code_that_its_row_names() -> None:
    assert driver_of("opencode") == "acp"
    assert driver_of("pi") == "pi"


def test_every_agent_that_has_a_usual_program_can_do_without_one_in_the_settings() -> None:
    for facts in HOSTS.values():
        assert not (facts.command and facts.needs_command)


def test_a_row_with_an_exact_list_names_our_tools_alone() -> None:
    for facts in HOSTS.values():
        if facts.tools is not None:
            assert facts.exact_tools
            assert set(facts.tools) <= set(TOOLS)
