"""What people say, both ways, in our own types.

An Inbound is one message as a channel understood it; a Prompt is what a worker hands to its agent. What the bridge
adds (notes) never mixes with the peer's words.
"""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from protocol.ids import MessageId, PeerId, ReplyToken


class MediaKind(StrEnum):
    IMAGE = "image"
    FILE = "file"
    VOICE = "voice"
    VIDEO = "video"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Media:
    """An attachment as announced, not yet downloaded."""

    kind: MediaKind
    name: str  # the sender's file name, unsafe; empty when there is none
    transcript: str  # voice only: WeChat's own words for it
    size_bytes: int | None  # as declared, never believed
    wire: bytes  # the channel's own JSON for this item; only that channel reads it


@dataclass(frozen=True, slots=True)
class Quote:
    """The message this one answers to."""

    text: str  # what came along; empty when only an id came
    message_id: MessageId | None
    partial: bytes | None  # the channel's own JSON for a substring selection


@dataclass(frozen=True, slots=True)
class Inbound:
    """One message of a batch."""

    message_id: MessageId
    sender: PeerId
    group_id: str  # empty for a private conversation
    created_at_ms: int | None  # the channel's clock
    reply_token: ReplyToken | None
    echo: bool  # our own words coming back
    text: str  # as written; neither sanitised nor capped
    media: tuple[Media, ...] = ()
    quote: Quote | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A message of a batch that could not be understood. Counted, logged by reason, never fatal."""

    message_id: MessageId
    reason: str


class Prompt(msgspec.Struct, frozen=True):
    """What one turn asks the agent.

    text    the peer's own words, sanitised and capped
    notes   lines of the bridge (late, interrupted, quote, attachment), each a block of its own
    images, files   paths below the peer's media folder, readable by the worker
    """

    text: str
    notes: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class Access(StrEnum):
    """What a peer's worker may reach, narrowest first."""

    CHAT = "chat"
    READONLY = "readonly"
    WORKSPACE = "workspace"
    FULL = "full"


class Role(StrEnum):
    OPERATOR = "operator"
    GUEST = "guest"
