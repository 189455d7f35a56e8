"""A message and a part as the journal holds them, and the states they can be in: values that cores and shells read.

store.py keeps them, recovery.py decides by them.
"""

from dataclasses import dataclass
from enum import StrEnum

from protocol.ids import Generation, MessageId, PeerKey, SendKey


class MessageState(StrEnum):
    """received → ignored | refused | turned_away | command | answer | queued
    queued → running ⇄ asking → answered | stopped | empty | failed | limited | declined | interrupted
    queued → stopped | dropped; and any open state → dead.
    """

    RECEIVED = "received"
    IGNORED = "ignored"
    REFUSED = "refused"
    TURNED_AWAY = "turned_away"
    COMMAND = "command"
    ANSWER = "answer"
    QUEUED = "queued"
    RUNNING = "running"
    ASKING = "asking"
    ANSWERED = "answered"
    STOPPED = "stopped"
    EMPTY = "empty"
    FAILED = "failed"
    LIMITED = "limited"
    DECLINED = "declined"
    INTERRUPTED = "interrupted"
    DROPPED = "dropped"
    DEAD = "dead"


class PartState(StrEnum):
    PENDING = "pending"
    SENDING = "sending"  # an attempt may be on its way
    ACCEPTED = "accepted"
    UNCONFIRMED = "unconfirmed"
    REJECTED = "rejected"
    PARKED = "parked"  # waits for the peer's next message
    DROPPED = "dropped"  # a courtesy line given way, the rest of a stopped turn, a dead letter


class PartKind(StrEnum):
    REPLY = "reply"
    COURTESY = "courtesy"  # waiting lines: first to give way
    OUTCOME = "outcome"  # never dropped: parks behind the answer it belongs to
    COMMAND = "command"  # a slash command's or a dialog's own lines: before parked parts
    FILE = "file"  # of an answer; its text is the file's name, its bytes lie in the spool under its send key
    PROACTIVE = "proactive"  # what nobody asked for: now or never
    PROACTIVE_FILE = "proactive_file"
    QUESTION = "question"  # before parked parts too; never kept for later, since nobody would wait for its answer


# Whoever finds one of these at start has something left to do.
OPEN_MESSAGES = (MessageState.RECEIVED, MessageState.QUEUED, MessageState.RUNNING, MessageState.ASKING)
OPEN_PARTS = (PartState.PENDING, PartState.SENDING, PartState.PARKED)


@dataclass(frozen=True, slots=True)
class MessageRow:
    """row: the journal's own number, in arrival order. handled: how often handling began: one found being handled
    after two deaths of the supervisor is set aside."""

    row: int
    who: PeerKey
    message_id: MessageId
    created_at_ms: int | None
    received_at: float
    raw: bytes
    state: MessageState
    handled: int
    text: str  # sanitised and capped once admitted, else empty
    late: bool
    generation: Generation | None  # of the worker that ran it


@dataclass(frozen=True, slots=True)
class PartRow:
    send_key: SendKey
    who: PeerKey
    message_row: int | None  # the turn it belongs to; None for a notice without one
    order: int  # per peer, rising
    kind: PartKind
    text: str
    state: PartState
    attempts: int
    message_id: MessageId | None  # the server's id, once accepted


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A fact with its number. at: Unix seconds. account: an AccountId or, of an account's own events, its bot id"""

    seq: int
    at: float
    event: str
    account: str | None
    peer: str | None
    message_id: MessageId | None
    data: str  # a JSON object


@dataclass(frozen=True, slots=True)
class TracedPart:
    """One bubble of a traced message, without its text."""

    kind: PartKind
    state: PartState
    attempts: int
    at: float
    state_at: float


@dataclass(frozen=True, slots=True)
class Traced:
    """All that the journal holds of one message's life. written_at: by WeChat's clock set right with ours, if told"""

    who: PeerKey
    row: int
    state: MessageState
    received_at: float
    state_at: float
    written_at: float | None
    parts: tuple[TracedPart, ...]
    events: tuple[EventRecord, ...]
