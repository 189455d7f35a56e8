"""The Channel: a chat network behind one interface, WeChat first; its limits, values and errors.

Poll, intake and delivery know channels through this file alone. Expected outcomes are values (Receipt); an exception
is for what a call could not finish.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from protocol.content import Inbound, Unreadable
from protocol.errors import BridgeError
from protocol.ids import AccountId, Cursor, MessageId, PeerId, ReplyToken, SendKey


class ChannelError(BridgeError):
    """A call to the chat network did not succeed. detail is one line for the log, free of secrets."""


class Unavailable(ChannelError):
    """Network, HTTP status or an unreadable answer: the outcome is unknown, try again later."""

    def __init__(self, detail: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class SignedOut(ChannelError):
    """WeChat's -14: the token is not accepted any more."""


class Refused(ChannelError):
    """The network answered with an error code of its own."""

    def __init__(self, detail: str, *, code: int) -> None:
        super().__init__(detail)
        self.code = code


class MediaUnreadable(ChannelError):
    """Nothing can be made of this medium, now or later: no address, no key, a key that does not fit, too large."""


class NotUploaded(ChannelError):
    """A file could not be handed to the network, and nothing was sent to the peer."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file on its way out. name: what the phone shows, already safe. picture: its bytes are one"""

    path: Path
    name: str
    picture: bool


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a confirmed login yields. token is secret."""

    account: AccountId  # the WeChat user who scanned
    bot_id: str
    token: str = field(repr=False)
    base_url: str


@dataclass(frozen=True, slots=True)
class RawMessage:
    """One message of a batch as received: what the journal keeps.

    raw      the message's own JSON, UTF-8
    content  what stays the same when the network hands the message out again under another id (its items without ids,
             or a digest of them); empty = the channel cannot tell, so only the id is compared
    """

    message_id: MessageId
    sender: PeerId
    created_at_ms: int | None
    reply_token: ReplyToken | None
    raw: bytes
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one poll returned, in the channel's order.

    cursor   None when the answer had none or an empty one: the old one stays
    hold_s   how long the server announced to hold the next poll; None = not said
    """

    messages: tuple[RawMessage, ...]
    cursor: Cursor | None
    hold_s: float | None


class ReceiptKind(StrEnum):
    ACCEPTED = "accepted"  # the server named a message id
    UNCONFIRMED = "unconfirmed"  # 200 without one: perhaps dropped
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The channel's answer to a send; nothing proves that a peer read it. code: only with REJECTED."""

    kind: ReceiptKind
    message_id: MessageId | None = None
    code: int = 0


@dataclass(frozen=True, slots=True)
class Route:
    """Where a reply goes."""

    account: AccountId
    peer: PeerId
    reply_token: ReplyToken | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one bubble may hold: text_units in UTF-16 units, and the encoded request body in bytes."""

    text_units: int
    body_bytes: int


class TypingState(StrEnum):
    TYPING = "typing"
    STOPPED = "stopped"


class Channel(Protocol):
    """One signed-in account on a chat network. Calls may overlap; each bounds itself in time."""

    @property
    def limits(self) -> Limits: ...

    @property
    def receiving(self) -> bool:
        """The answer to a fetch has begun to arrive: to cut it now would lose what it hands over."""
        ...

    async def announce_start(self) -> None:
        """Tell the network that polling begins. raises ChannelError, which callers only log"""

    async def announce_stop(self) -> None: ...

    async def fetch(self, cursor: Cursor, *, hold_s: float) -> Batch:
        """One long poll. A client-side read timeout after hold_s plus slack is an empty Batch, not an error.

        raises Unavailable, SignedOut, Refused
        """
        ...

    async def send_text(self, route: Route, text: str, send_key: SendKey) -> Receipt:
        """One bubble. raises Unavailable when the outcome is unknown (send again with the same key), SignedOut"""
        ...

    async def send_file(self, route: Route, upload: Upload, send_key: SendKey) -> Receipt:
        """One picture or file, without a caption. Called again with the same key it is not uploaded again.

        raises NotUploaded, Unavailable (as in send_text), SignedOut
        """
        ...

    async def show_typing(self, route: Route, state: TypingState) -> None:
        """Best effort; a refused ticket is renewed once. raises ChannelError, which callers only count"""

    async def aclose(self) -> None: ...


class MediaSource(Protocol):
    """Where announced media are fetched; needs no signed-in account."""

    async def download(self, item: bytes, sink: Callable[[bytes], None], *, most_bytes: int) -> None:
        """item: Media.wire. Hands the plain bytes to sink as they come; none may be used before this returns.

        raises MediaUnreadable (also beyond most_bytes), Unavailable: worth another try
        """
        ...

    async def aclose(self) -> None: ...


class Reader(Protocol):
    """The channel's pure half: journal rows → our types."""

    def parse(self, raw: bytes) -> Inbound | Unreadable:
        """Never raises, whatever the bytes."""
        ...

    def part_of(self, text: str, partial: bytes) -> str | None:
        """The part of a quoted text that the peer had selected; None when it cannot be made out."""
        ...
