"""doctor: what it gathers. What is made of it: core/test_doctor.py; the verb as a whole: tests/promises/test_doctor.py."""

import pytest

from supervisor.config import without_password
from supervisor.core.doctor import AgentFact
from supervisor.core.policy import Agent
from supervisor.doctor import agents_in_use


@pytest.mark.parametrize(
    ("proxy", "shown"),
    [
        (None, ""),
        ("", ""),
        ("http://proxy:8080", "http://proxy:8080"),
        ("http://me:canary@proxy:8080/path?key=canary", "http://proxy:8080"),
        ("socks5://canary@[2001:db8::1]:1080", "socks5://[2001:db8::1]:1080"),
        ("http://me:canary@proxy:port", ""),
        ("http://[canary", ""),
    ],
)
def test_a_proxy_is_shown_without_what_may_be_secret(proxy: str | None, shown: str) -> None:
    assert without_password(proxy) == shown


def test_each_agent_is_named_once_with_those_who_get_it_and_whether_its_program_is_there() -> None:
    shell = Agent("acp", ("sh", "-c", "x"))
    missing = Agent("acp", ("no-such-program",))

    found = agents_in_use(Agent(), [("alice", shell), ("bob", shell), ("carol", Agent()), ("dave", missing)])

    assert found == (
        AgentFact("echo", None, False, True, ("by default",)),
        AgentFact("acp", "sh", True, False, ("alice", "bob")),
        AgentFact("acp", "no-such-program", False, False, ("dave",)),
    )
