from itertools import product

from protocol.content import Access
from protocol.spec import NetworkMode
from supervisor.contract import SessionFacts, contract


def test_the_same_facts_give_the_same_bytes() -> None:
    facts = SessionFacts(Access.WORKSPACE, NetworkMode.GATEWAY, "/home/peer/media")

    assert contract(facts) == contract(SessionFacts(Access.WORKSPACE, NetworkMode.GATEWAY, "/home/peer/media"))


def test_every_level_and_network_has_its_own_words() -> None:
    texts = {contract(SessionFacts(access, network, "")) for access, network in product(Access, NetworkMode)}

    # No socket and the gateway alone come to the same for an agent: the web is out of reach.
    assert len(texts) == len(Access) * (len(NetworkMode) - 1)


def test_the_agent_is_told_where_attachments_lie_if_it_can_have_any() -> None:
    assert "/srv/media/x" in contract(SessionFacts(Access.READONLY, NetworkMode.GATEWAY, "/srv/media/x"))
    assert "ttachments" not in contract(SessionFacts(Access.CHAT, NetworkMode.NONE, ""))


def test_the_contract_says_what_a_phone_cannot_show() -> None:
    text = contract(SessionFacts(Access.CHAT, NetworkMode.NONE, ""))

    for word in ("phone", "terminal", "tool output", "files", "command", "gist", "project"):
        assert word in text
