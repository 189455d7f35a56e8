import pytest

from protocol.ids import AccountId, Generation, LeaseKey, PeerId, PeerKey, label


def test_a_lease_knows_whose_it_is() -> None:
    key = LeaseKey(AccountId("owner"), PeerId("alice"), Generation(3))

    assert key.who == PeerKey(AccountId("owner"), PeerId("alice"))


@pytest.mark.parametrize(
    ("peer", "short"),
    [
        ("alice@im.wechat", "alice"),
        ("alice", "alice"),
        ("a@b@c", "a"),
        ("用户@im.wechat", "用户"),
        ("", ""),
        ("@x", ""),
    ],
)
def test_a_label_is_what_stands_before_the_first_at_sign(peer: str, short: str) -> None:
    assert label(peer) == short
