"""What supervisor and gateway say to each other over their socketpair, as frames of protocol.codec.

Down go tokens (as digests) with the model server that each may use, allowances, and the end of both; up go what was
spent and the wish for more. An Upstream holds an API key: this channel is the only one that ever carries it.
"""

from enum import StrEnum

import msgspec

from protocol.codec import Codec
from protocol.ids import LeaseKey


class Dialect(StrEnum):
    """How a model server is spoken to; an OpenAI-compatible one speaks OPENAI."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GOOGLE = "google"


class Upstream(msgspec.Struct, frozen=True):
    """A model server. key: empty for one that wants none."""

    dialect: Dialect
    base_url: str
    key: str

    def __repr__(self) -> str:
        return f"Upstream({self.dialect.value})"  # never the key, wherever this is printed


class Issue(msgspec.Struct, frozen=True, tag=True):
    """From now on this token means this worker; tokens of the peer's earlier generations end.

    digest    of the token (supervisor.core.gateway.digest)
    upstream  None: the settings name no model that could be used
    limited   the peer has a daily allowance, which is lent in blocks
    proxy     the worker may reach the public web
    """

    digest: bytes
    key: LeaseKey
    upstream: Upstream | None
    limited: bool
    proxy: bool


class Revoke(msgspec.Struct, frozen=True, tag=True):
    key: LeaseKey


class Lend(msgspec.Struct, frozen=True, tag=True):
    """The answer to AskedForMore. tokens 0: today's allowance is used up."""

    key: LeaseKey
    tokens: int


class Serving(msgspec.Struct, frozen=True, tag=True):
    """The gateway accepts connections."""


class Spent(msgspec.Struct, frozen=True, tag=True):
    """One answer's tokens, as the model server counted them, or estimated where it did not."""

    key: LeaseKey
    input_tokens: int
    output_tokens: int


class AskedForMore(msgspec.Struct, frozen=True, tag=True):
    """A request waits for its worker's allowance."""

    key: LeaseKey


class CallFailed(msgspec.Struct, frozen=True, tag=True):
    """The model server refused a call, or (status 0) could not be reached. For log and status."""

    key: LeaseKey
    status: int


ToGateway = Issue | Revoke | Lend
FromGateway = Serving | Spent | AskedForMore | CallFailed

to_gateway: Codec[ToGateway] = Codec(ToGateway)
from_gateway: Codec[FromGateway] = Codec(FromGateway)
