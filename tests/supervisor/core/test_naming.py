"""Which peer is meant."""

from protocol.ids import AccountId, PeerId, PeerKey
from supervisor.core.naming import AccountNames, Ambiguous, Unknown, find_account, find_peer

WORK = AccountNames(AccountId("boss@im.wechat"), "work", "b1@im.bot")
HOME = AccountNames(AccountId("me@im.wechat"), "home", "b2@im.bot")
ACCOUNTS = [WORK, HOME]


def key(account: AccountNames, peer: str) -> PeerKey:
    return PeerKey(account.account, PeerId(peer))


def test_a_peer_is_found_by_id_and_by_label() -> None:
    known = [key(WORK, "alice@im.wechat"), key(WORK, "bob@im.wechat")]

    assert find_peer("alice@im.wechat", known, ACCOUNTS) == known[0]
    assert find_peer("bob", known, ACCOUNTS) == known[1]


def test_case_counts() -> None:
    assert find_peer("Alice", [key(WORK, "alice@im.wechat")], ACCOUNTS) == Unknown("Alice")


def test_a_peer_of_two_accounts_is_ambiguous_until_the_account_is_named() -> None:
    known = [key(WORK, "alice@im.wechat"), key(HOME, "alice@im.wechat")]

    unclear = find_peer("alice", known, ACCOUNTS)
    named = find_peer("home/alice", known, ACCOUNTS)

    assert unclear == Ambiguous("alice", ("work/alice@im.wechat", "home/alice@im.wechat"))
    assert named == known[1]


def test_a_label_of_two_ids_is_refused_with_the_candidates() -> None:
    known = [key(WORK, "alice@im.wechat"), key(WORK, "alice@other")]

    assert find_peer("alice", known, ACCOUNTS) == Ambiguous("alice", ("alice@im.wechat", "alice@other"))


def test_an_account_is_found_by_name_bot_id_and_owner_and_by_nothing_when_it_is_the_only_one() -> None:
    for text in ("work", "b1@im.bot", "b1", "boss@im.wechat", "boss"):
        assert find_account(text, ACCOUNTS) == WORK
    assert find_account("", [HOME]) == HOME
    assert find_account("", ACCOUNTS) == Ambiguous("", ("work", "home"))
    assert find_account("nobody", ACCOUNTS) == Unknown("nobody")
