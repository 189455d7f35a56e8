"""Which account or peer a person means by what they typed.

PEER is an id or a label, with ACCOUNT/ before it where two accounts know it; ACCOUNT is a name, a bot id or an owner's
id or label. Case counts: ids differ by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.ids import AccountId, PeerKey, label


@dataclass(frozen=True, slots=True)
class AccountNames:
    """All that an account may be called."""

    account: AccountId
    name: str
    bot_id: str

    def called(self, text: str) -> bool:
        return text in (self.name, self.bot_id, label(self.bot_id), self.account, label(self.account))


@dataclass(frozen=True, slots=True)
class Unknown:
    text: str


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """candidates: what to type instead, each."""

    text: str
    candidates: tuple[str, ...]


def find_account(text: str, accounts: Sequence[AccountNames]) -> AccountNames | Unknown | Ambiguous:
    """An empty text means the only account there is."""
    found = [a for a in accounts if not text or a.called(text)]
    if len(found) == 1:
        return found[0]
    if not found:
        return Unknown(text)
    return Ambiguous(text, tuple(a.name or a.bot_id for a in found))


def find_peer(text: str, known: Sequence[PeerKey], accounts: Sequence[AccountNames]) -> PeerKey | Unknown | Ambiguous:
    """known: peers that may be meant, each once."""
    prefix, slash, rest = text.partition("/")
    wanted = rest if slash else text
    found = [k for k in known if wanted in (k.peer, label(k.peer))]
    exact = [k for k in found if wanted == k.peer]
    found = exact or found
    if slash:
        owners = {a.account for a in accounts if a.called(prefix)}
        found = [k for k in found if k.account in owners]
    if len(found) == 1:
        return found[0]
    if not found:
        return Unknown(text)
    return Ambiguous(text, tuple(_spelled(k, found, accounts) for k in found))


def _spelled(key: PeerKey, among: Sequence[PeerKey], accounts: Sequence[AccountNames]) -> str:
    """The shortest spelling that names this peer and no other of the found ones."""
    if sum(k.peer == key.peer for k in among) == 1:
        return key.peer
    called = next((a.name or a.bot_id for a in accounts if a.account == key.account), key.account)
    return f"{called}/{key.peer}"
