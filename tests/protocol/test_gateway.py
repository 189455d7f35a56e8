"""protocol/gateway.py: what supervisor and gateway say travels whole, and a key is never printed."""

from protocol.codec import encode
from protocol.gateway import Dialect, Issue, Lend, Spent, Upstream, from_gateway, to_gateway
from protocol.ids import AccountId, Generation, LeaseKey, PeerId

KEY = LeaseKey(AccountId("a"), PeerId("p"), Generation(3))
ISSUE = Issue(b"digest", KEY, Upstream(Dialect.OPENAI, "https://x/v1", "sk-canary"), limited=True, proxy=False)


def test_every_word_travels_whole_with_its_lease() -> None:
    for order in (ISSUE, Lend(KEY, 20_000)):
        assert to_gateway.decode(encode(order)) == order
    spent = from_gateway.decode(encode(Spent(KEY, 7, 8)))

    assert spent == Spent(KEY, 7, 8) and isinstance(spent.key, LeaseKey)


def test_a_key_is_never_printed() -> None:
    assert "sk-canary" not in repr(ISSUE) and "sk-canary" not in str(ISSUE.upstream)
