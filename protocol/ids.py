"""The names of things: one NewType per kind, so that none is passed for another.

Only the channel that made a PeerId, MessageId, Cursor or ReplyToken may look inside it.
"""

from typing import NamedTuple, NewType

AccountId = NewType("AccountId", str)  # the WeChat user who scanned; stays the same over every later scan
PeerId = NewType("PeerId", str)  # the sender's id, case kept
MessageId = NewType("MessageId", str)  # the channel's id of one inbound message, as text
TurnId = NewType("TurnId", str)  # one prompt carried to its end: the journal's row number, as text
DialogId = NewType("DialogId", str)  # the worker's name for a question, unique in its turn
SessionId = NewType("SessionId", str)  # the agent program's own name for a conversation
Cursor = NewType("Cursor", str)  # secret: seems to embed the account token
ReplyToken = NewType("ReplyToken", str)  # WeChat's context_token; secret
SendKey = NewType("SendKey", str)  # WeChat's client_id: its dedupe key
Generation = NewType("Generation", int)  # counts a peer's workers; rises with every start


class PeerKey(NamedTuple):
    """One person at the far end of one account: identity everywhere in the bridge."""

    account: AccountId
    peer: PeerId


class LeaseKey(NamedTuple):
    """One worker's licence to speak."""

    account: AccountId
    peer: PeerId
    generation: Generation

    @property
    def who(self) -> PeerKey:
        return PeerKey(self.account, self.peer)


def label(peer: str) -> str:
    """The short form people type: `alice` of `alice@im.wechat`."""
    return peer.split("@", 1)[0]
