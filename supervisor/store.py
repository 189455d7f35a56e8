"""The journal, inbox, outbox and peers on disk: SQLite, WAL, synchronous=FULL, one writer.

`record_batch` puts raw messages, ids and cursor down in one transaction before anything acts on them; `apply` carries a
list of changes, all or none. Everything to the right of the journal can be rebuilt from what stands here. Credentials
and keys do not. Store is synchronous and belongs to one thread; Journal is its face for asyncio.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from protocol.content import Role
from protocol.errors import BridgeError
from protocol.ids import AccountId, Cursor, Generation, MessageId, PeerKey, ReplyToken, SendKey, SessionId
from supervisor.channels.base import Batch
from supervisor.core.states import MessageState, PartKind, PartState

__all__ = ["MessageState", "PartKind", "PartState"]  # shells take them from here as well

P = ParamSpec("P")
T = TypeVar("T")


class JournalUnavailable(BridgeError):
    """The disk refuses a transaction (full, read-only, locked); nothing of it was kept. Try again."""


# --- rows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account as the journal knows it; its token lives in credentials.json."""

    account: AccountId
    bot_id: str
    name: str
    role: Role
    paused: bool
    expired: bool
    logged_in_at: float  # Unix seconds
    clock_offset_ms: int | None  # smallest (arrival − create_time_ms) of the last 50 messages


@dataclass(frozen=True, slots=True)
class MessageRow:
    """row: the journal's own number, in arrival order. handled: how often handling began (settled.md 28)."""

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
class PeerRecord:
    """spent: messages sent since the peer's last one. turns_at: starts of turns in the last hour."""

    who: PeerKey
    language: str  # "zh" | "en"
    reply_token: ReplyToken | None
    last_inbound_at: float | None
    spent: int
    session_id: SessionId | None
    session_started_at: float | None
    generation: Generation  # of the last worker started
    turns: int
    turns_at: tuple[float, ...]
    interrupted_note: str  # what the next turn is told; empty = nothing
    uid: int | None


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    who: PeerKey
    count: int
    last_at: float


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One line of a conversation. flag: "" or why a reply has not arrived: parked, rejected, unconfirmed, pending."""

    from_peer: bool
    text: str
    at: float
    flag: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What record_batch did: rows in the channel's order; replayed ids were counted, not stored again."""

    rows: tuple[MessageRow, ...]
    replayed: int


# --- changes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetMessage:
    """Moves a message; the counter of that state rises with it (turns_answered, refused, turned_away, ...)."""

    row: int
    state: MessageState
    at: float
    generation: Generation | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """An admitted peer wrote: token, language and budget follow, whatever kind of message it was."""

    row: int
    who: PeerKey
    at: float
    reply_token: ReplyToken | None
    language: str
    text: str = ""
    late: bool = False


@dataclass(frozen=True, slots=True)
class BeginHandling:
    row: int


@dataclass(frozen=True, slots=True)
class CountRefused:
    """Raises the sender's count; at most 1,000 senders are kept, the longest silent are forgotten."""

    who: PeerKey
    at: float


@dataclass(frozen=True, slots=True)
class ForgetRefused:
    who: PeerKey


@dataclass(frozen=True, slots=True)
class AddPart:
    """A part or notice, its send key stored before any attempt. It goes behind all of that peer's parts."""

    send_key: SendKey
    who: PeerKey
    message_row: int | None
    kind: PartKind
    text: str
    at: float
    state: PartState = PartState.PENDING


@dataclass(frozen=True, slots=True)
class SetPart:
    """spend: 1 with the first attempt; it raises the peer's spent. Counters follow ACCEPTED, UNCONFIRMED, REJECTED."""

    send_key: SendKey
    state: PartState
    at: float
    spend: int = 0
    message_id: MessageId | None = None


@dataclass(frozen=True, slots=True)
class StartedTurn:
    """Counts a turn against the peer's rolling hour and clears the interrupted note."""

    who: PeerKey
    at: float


@dataclass(frozen=True, slots=True)
class SetSession:
    """None starts a fresh conversation with the next turn; history of the old one no longer shows."""

    who: PeerKey
    session_id: SessionId | None
    at: float


@dataclass(frozen=True, slots=True)
class SetGeneration:
    who: PeerKey
    generation: Generation


@dataclass(frozen=True, slots=True)
class SetInterruptedNote:
    who: PeerKey
    note: str


@dataclass(frozen=True, slots=True)
class Bump:
    counter: str
    by: int = 1


Change = (
    SetMessage
    | Heard
    | BeginHandling
    | CountRefused
    | ForgetRefused
    | AddPart
    | SetPart
    | StartedTurn
    | SetSession
    | SetGeneration
    | SetInterruptedNote
    | Bump
)

COUNTERS = (
    "received",
    "replayed",
    "refused",
    "turns_answered",
    "turns_failed",
    "turns_stopped",
    "turns_interrupted",
    "turns_declined",
    "turned_away",
    "dropped",
    "dead",
    "turns_limited",
    "turns_empty",
    "parts_sent",
    "sends_rejected",
    "sends_unconfirmed",
    "media_dropped",
    "workers_started",
    "workers_crashed",
    "protocol_violations",
)


class Store:
    """Every method is one transaction. raises JournalUnavailable when the disk refuses it."""

    @classmethod
    def open(cls, path: Path) -> tuple[Self, tuple[str, ...]]:
        """Open or create. A damaged file is set aside beside itself with a time stamp and a new one begun; the second
        value holds one line for each such thing, for log, status and doctor. A newer schema raises BridgeError."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    # accounts
    def accounts(self) -> tuple[AccountRecord, ...]:
        """In the order they were added: the first is the operator's."""
        raise NotImplementedError

    def sign_in(self, account: AccountId, bot_id: str, name: str, role: Role | None, at: float) -> AccountRecord:
        """A confirmed login: cursor, reply tokens emptied; pause and expiry end; name (when given), role (when given)
        change; a new account gets role or the rule of behaviour.md 3. The clock samples begin anew."""
        raise NotImplementedError

    def sign_out(self, account: AccountId, at: float) -> tuple[MessageRow, ...]:
        """Logout: waiting messages become DROPPED (returned), cursor and tokens are wiped, the account row goes;
        conversations stay."""
        raise NotImplementedError

    def set_paused(self, account: AccountId, paused: bool) -> None:
        raise NotImplementedError

    def set_expired(self, account: AccountId, expired: bool) -> None:
        raise NotImplementedError

    def cursor(self, account: AccountId) -> Cursor:
        raise NotImplementedError

    # the journal
    def record_batch(self, account: AccountId, batch: Batch, at: float) -> Recorded:
        """Raw messages, ids, cursor and clock samples in one transaction. Known (account, sender, id) are replays; so is
        another id with sender, content and create_time_ms all equal. The first new row counts as being handled."""
        raise NotImplementedError

    def apply(self, changes: Sequence[Change]) -> None:
        raise NotImplementedError

    # reads
    def open_messages(self) -> tuple[MessageRow, ...]:
        """RECEIVED, QUEUED, RUNNING and ASKING rows, oldest first."""
        raise NotImplementedError

    def open_parts(self) -> tuple[PartRow, ...]:
        """PENDING, SENDING and PARKED parts, oldest first."""
        raise NotImplementedError

    def message(self, row: int) -> MessageRow | None:
        raise NotImplementedError

    def message_text(self, account: AccountId, message_id: MessageId) -> str | None:
        """What a quoted id said: an inbound's text or an accepted part's."""
        raise NotImplementedError

    def peer(self, who: PeerKey) -> PeerRecord:
        """A peer never heard of yields the defaults (language "en", generation 0)."""
        raise NotImplementedError

    def peers(self) -> tuple[PeerRecord, ...]:
        """Everybody who was ever admitted, oldest first."""
        raise NotImplementedError

    def history(self, who: PeerKey, count: int) -> tuple[HistoryRow, ...]:
        """The last lines of the current conversation, oldest first."""
        raise NotImplementedError

    def refused(self) -> tuple[RefusedRecord, ...]:
        raise NotImplementedError

    def counters(self) -> dict[str, int]:
        """All of COUNTERS."""
        raise NotImplementedError

    def uid_for(self, who: PeerKey, base: int) -> int:
        """The peer's uid for life, taken from base on, never used twice."""
        raise NotImplementedError

    def prune(self, now: float, keep_days: int) -> None:
        """Texts and raw of closed messages older than keep_days, ids older than 7 days, parts never fetched for 7 days
        (DROPPED); then a checkpoint."""
        raise NotImplementedError


class Journal:
    """Runs Store's methods, one after the other, on its own thread: `await journal.do(Store.apply, changes)`."""

    async def do(self, method: Callable[Concatenate[Store, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
