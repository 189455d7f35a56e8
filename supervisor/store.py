"""The journal, inbox, outbox and peers on disk: SQLite, WAL, synchronous=FULL, one writer.

`record_batch` puts raw messages, ids and cursor down in one transaction before anything acts on them; `apply` carries a
list of changes, all or none. Everything to the right of the journal can be rebuilt from what stands here. Credentials
and keys do not. Store is synchronous and belongs to one thread; Journal is its face for asyncio.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, assert_never

from protocol.content import Role
from protocol.errors import BridgeError
from protocol.ids import (
    AccountId,
    Cursor,
    DialogId,
    Generation,
    MessageId,
    PeerId,
    PeerKey,
    ReplyToken,
    SendKey,
    SessionId,
)
from supervisor.channels.base import Batch, RawMessage
from supervisor.core.states import (
    OPEN_MESSAGES,
    EventRecord,
    MessageRow,
    MessageState,
    PartKind,
    PartRow,
    PartState,
    Traced,
    TracedPart,
)

__all__ = [
    "EventRecord",
    "MessageRow",
    "MessageState",
    "PartKind",
    "PartRow",
    "PartState",
]  # shells take them from here as well

P = ParamSpec("P")
T = TypeVar("T")


class JournalUnavailable(BridgeError):
    """The disk refuses a transaction (full, read-only, locked); nothing of it was kept. Try again."""


class JournalDamaged(JournalUnavailable):
    """The file was found damaged while in use. Trying again may not help; the next open sets it aside."""


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


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """spent: messages sent since the peer's last one. turns_at: starts of turns in the last hour. told_until: of limits
    that the peer was told of, when the window ends (Unix seconds)"""

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
    told_until: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    who: PeerKey
    count: int
    last_at: float


@dataclass(frozen=True, slots=True)
class ParkedRecord:
    """Parts of one peer's that wait for its next message. since: when the oldest was made."""

    who: PeerKey
    count: int
    since: float


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Messages of one peer's that ended as FAILED or DEAD."""

    who: PeerKey
    state: MessageState
    count: int
    last_at: float


@dataclass(frozen=True, slots=True)
class DialogRecord:
    """A question that a worker put to its peer. outcome: None while it is open"""

    who: PeerKey
    message_row: int
    name: DialogId
    kind: str
    purpose: str
    title: str
    at: float
    outcome: str | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """number: for good, never given to another rule"""

    number: int
    rule: str
    at: float


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
    """Moves a message; the counter of that state rises with it (turns_answered, refused, turned_away, ...).

    What was refused or ignored loses its raw text at once: nothing of a stranger's is kept but the count.
    """

    row: int
    state: MessageState
    at: float
    generation: Generation | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """An admitted peer wrote: token, language and budget follow, whatever kind of message it was.

    written_at   on our clock, in Unix seconds; None: at `at`. What was sent since then counts against the new budget
    """

    row: int
    who: PeerKey
    at: float
    reply_token: ReplyToken | None
    language: str
    text: str = ""
    late: bool = False
    written_at: float | None = None


@dataclass(frozen=True, slots=True)
class BeginHandling:
    row: int


@dataclass(frozen=True, slots=True)
class PutBack:
    """Handling ended without an outcome because of an orderly stop: it is not counted against the message."""

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
class AddDialog:
    """A worker asked its peer. name: its dialog id, unique in its turn; dialogs of one name in one turn are one."""

    who: PeerKey
    message_row: int
    name: DialogId
    kind: str
    purpose: str
    title: str
    at: float


@dataclass(frozen=True, slots=True)
class EndDialog:
    """outcome: answered, expired, ... (core/dialog.py)"""

    message_row: int
    name: DialogId
    outcome: str
    at: float


@dataclass(frozen=True, slots=True)
class AddRule:
    """An "always" answer: kept once, however often it is given."""

    who: PeerKey
    rule: str
    at: float


@dataclass(frozen=True, slots=True)
class RevokeRule:
    who: PeerKey
    number: int


@dataclass(frozen=True, slots=True)
class StartedTurn:
    """Counts a turn against the peer's rolling hour and clears the interrupted note."""

    who: PeerKey
    at: float


@dataclass(frozen=True, slots=True)
class SetLimitTold:
    """This peer was told of this limit, once for the window that ends then."""

    who: PeerKey
    limit: str
    until: float


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


@dataclass(frozen=True, slots=True)
class AddUsage:
    """More tokens of one peer's day. day: the machine's calendar, as 2026-11-30"""

    who: PeerKey
    day: str
    input_tokens: int
    output_tokens: int


Change = (
    SetMessage
    | Heard
    | BeginHandling
    | PutBack
    | CountRefused
    | ForgetRefused
    | AddPart
    | SetPart
    | AddDialog
    | EndDialog
    | AddRule
    | RevokeRule
    | StartedTurn
    | SetLimitTold
    | SetSession
    | SetGeneration
    | SetInterruptedNote
    | Bump
    | AddUsage
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


_COUNTER_OF: dict[MessageState, str] = {
    MessageState.REFUSED: "refused",
    MessageState.TURNED_AWAY: "turned_away",
    MessageState.ANSWERED: "turns_answered",
    MessageState.STOPPED: "turns_stopped",
    MessageState.EMPTY: "turns_empty",
    MessageState.FAILED: "turns_failed",
    MessageState.LIMITED: "turns_limited",
    MessageState.DECLINED: "turns_declined",
    MessageState.INTERRUPTED: "turns_interrupted",
    MessageState.DROPPED: "dropped",
    MessageState.DEAD: "dead",
}
_COUNTER_OF_PART: dict[PartState, str] = {
    PartState.ACCEPTED: "parts_sent",
    PartState.UNCONFIRMED: "sends_unconfirmed",
    PartState.REJECTED: "sends_rejected",
}

# Why a reply has not arrived, the worst first: what history shows of a turn whose bubbles differ.
_FLAGS = (
    (PartState.REJECTED, "rejected"),
    (PartState.PARKED, "parked"),
    (PartState.PENDING, "pending"),
    (PartState.SENDING, "pending"),
    (PartState.UNCONFIRMED, "unconfirmed"),
)

EVENTS_KEPT = 10_000
EVENTS_SLACK = 500  # more are kept before the oldest go, so that they go many at a time
SCHEMA_VERSION = 1
APPLICATION_ID = 0x62726467  # "brdg": the header says whose database it is
BUSY_MS = 2_000
CHECK_S = 2.0  # most time that open spends on looking for damage; a large journal is looked at in part
SEEN_S = 7 * 86_400.0  # ids, and parts that nobody fetched
HOUR_S = 3_600.0
USAGE_S = 400 * 86_400.0  # a year of days, to compare with
CLOCK_SAMPLES = 50
REFUSED_KEPT = 1_000
LANDED_LATELY = 1_000  # of all parts, among which those are looked for at a start
SENT_LATELY = 100  # of a peer's parts, among which those sent while its message was on its way are looked for

# Ids are TEXT: WeChat's exceed 2^63. States are spelled out in the partial indexes, as in the queries that use them.
_SCHEMA = """
CREATE TABLE account (
  place         INTEGER PRIMARY KEY AUTOINCREMENT,
  account       TEXT NOT NULL UNIQUE,
  bot_id        TEXT NOT NULL,
  name          TEXT NOT NULL,
  role          TEXT NOT NULL,
  paused        INTEGER NOT NULL DEFAULT 0,
  expired       INTEGER NOT NULL DEFAULT 0,
  logged_in_at  REAL NOT NULL,
  cursor        TEXT NOT NULL DEFAULT '',
  samples_after INTEGER NOT NULL DEFAULT 0  -- clock samples are taken from later messages only
);
CREATE TABLE message (
  row           INTEGER PRIMARY KEY AUTOINCREMENT,
  account       TEXT NOT NULL,
  sender        TEXT NOT NULL,
  message_id    TEXT NOT NULL,
  created_at_ms INTEGER,
  received_at   REAL NOT NULL,
  raw           BLOB NOT NULL,
  state         TEXT NOT NULL,
  handled       INTEGER NOT NULL DEFAULT 0,
  text          TEXT NOT NULL DEFAULT '',
  late          INTEGER NOT NULL DEFAULT 0,
  generation    INTEGER,
  conversation  INTEGER,                    -- of its peer; set once its turn begins
  state_at      REAL NOT NULL
);
CREATE INDEX message_account ON message (account, row);
CREATE INDEX message_peer ON message (account, sender, row);
CREATE INDEX message_name ON message (account, message_id);
CREATE INDEX message_open ON message (row) WHERE state IN ('received', 'queued', 'running', 'asking');
CREATE TABLE seen (
  account       TEXT NOT NULL,
  sender        TEXT NOT NULL,
  message_id    TEXT NOT NULL,
  created_at_ms INTEGER,
  content       BLOB,
  at            REAL NOT NULL,
  PRIMARY KEY (account, sender, message_id)
) WITHOUT ROWID;
CREATE INDEX seen_content ON seen (account, sender, created_at_ms, content) WHERE content IS NOT NULL;
CREATE INDEX seen_at ON seen (at);
CREATE TABLE part (
  place         INTEGER PRIMARY KEY AUTOINCREMENT,
  send_key      TEXT NOT NULL UNIQUE,
  account       TEXT NOT NULL,
  peer          TEXT NOT NULL,
  message_row   INTEGER,
  kind          TEXT NOT NULL,
  text          TEXT NOT NULL,
  state         TEXT NOT NULL,
  attempts      INTEGER NOT NULL DEFAULT 0,
  message_id    TEXT,
  at            REAL NOT NULL,
  state_at      REAL NOT NULL
);
CREATE INDEX part_turn ON part (message_row) WHERE message_row IS NOT NULL;
CREATE INDEX part_name ON part (account, message_id) WHERE message_id IS NOT NULL;
CREATE INDEX part_open ON part (place) WHERE state IN ('pending', 'sending', 'parked');
CREATE TABLE peer (
  place              INTEGER PRIMARY KEY AUTOINCREMENT,
  account            TEXT NOT NULL,
  peer               TEXT NOT NULL,
  language           TEXT NOT NULL DEFAULT 'en',
  reply_token        TEXT,
  last_inbound_at    REAL,
  spent              INTEGER NOT NULL DEFAULT 0,
  session_id         TEXT,
  session_started_at REAL,
  generation         INTEGER NOT NULL DEFAULT 0,
  turns              INTEGER NOT NULL DEFAULT 0,
  interrupted_note   TEXT NOT NULL DEFAULT '',
  conversation       INTEGER NOT NULL DEFAULT 0,
  UNIQUE (account, peer)
);
CREATE TABLE turn_start (account TEXT NOT NULL, peer TEXT NOT NULL, at REAL NOT NULL);
CREATE INDEX turn_start_peer ON turn_start (account, peer, at);
CREATE TABLE uid (
  uid     INTEGER PRIMARY KEY,
  account TEXT NOT NULL,
  peer    TEXT NOT NULL,
  UNIQUE (account, peer)
);
CREATE TABLE refused (
  account TEXT NOT NULL,
  peer    TEXT NOT NULL,
  count   INTEGER NOT NULL,
  last_at REAL NOT NULL,
  PRIMARY KEY (account, peer)
);
CREATE INDEX refused_silent ON refused (last_at);
CREATE TABLE usage (
  account       TEXT NOT NULL,
  peer          TEXT NOT NULL,
  day           TEXT NOT NULL,
  input_tokens  INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  PRIMARY KEY (account, peer, day)
) WITHOUT ROWID;
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

# Made where it is missing: an older bridge neither knows nor minds it.
_DIALOGS = """
CREATE TABLE IF NOT EXISTS dialog (
  message_row INTEGER NOT NULL,
  name        TEXT NOT NULL,
  account     TEXT NOT NULL,
  peer        TEXT NOT NULL,
  kind        TEXT NOT NULL,
  purpose     TEXT NOT NULL,
  title       TEXT NOT NULL,
  at          REAL NOT NULL,
  outcome     TEXT,
  ended_at    REAL,
  PRIMARY KEY (message_row, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS limit_told (
  account TEXT NOT NULL,
  peer    TEXT NOT NULL,
  name    TEXT NOT NULL,
  until   REAL NOT NULL,
  PRIMARY KEY (account, peer, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rule (
  number  INTEGER PRIMARY KEY AUTOINCREMENT,
  account TEXT NOT NULL,
  peer    TEXT NOT NULL,
  rule    TEXT NOT NULL,
  at      REAL NOT NULL,
  UNIQUE (account, peer, rule)
);
"""
_EVENTS = """
CREATE INDEX IF NOT EXISTS part_peer ON part (account, peer, place);
CREATE TABLE IF NOT EXISTS event (
  seq        INTEGER PRIMARY KEY AUTOINCREMENT,
  at         REAL NOT NULL,
  event      TEXT NOT NULL,
  account    TEXT,
  peer       TEXT,
  message_id TEXT,
  data       TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS event_message ON event (message_id) WHERE message_id IS NOT NULL;
"""

_MESSAGE = "row, account, sender, message_id, created_at_ms, received_at, raw, state, handled, text, late, generation"
_PART = "send_key, account, peer, message_row, place, kind, text, state, attempts, message_id"
_PEER = (
    "account, peer, language, reply_token, last_inbound_at, spent, session_id, session_started_at, generation, turns,"
    " interrupted_note, (SELECT uid FROM uid WHERE uid.account = peer.account AND uid.peer = peer.peer)"
)
_OPEN_MESSAGE = "state IN ('received', 'queued', 'running', 'asking')"
_OPEN_PART = "state IN ('pending', 'sending', 'parked')"


class Store:
    """Every method is one transaction. raises JournalUnavailable when the disk refuses it.

    open() returns a Store that belongs to the calling thread.
    """

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path

    @classmethod
    def open(cls, path: Path) -> tuple[Self, tuple[str, ...]]:
        """Open or create. A damaged file is set aside beside itself with a time stamp and a new one begun; the second
        value holds one line for each such thing, for log, status and doctor.

        raises   BridgeError: a newer bridge's file, left as it is; JournalUnavailable: locked, or the disk refuses
        """
        warnings: list[str] = []
        try:
            if _is_damaged(path):
                warnings.append(_set_aside(path))
            try:
                db = _connect(path)
            except sqlite3.DatabaseError as error:
                if not _means_damage(error):
                    raise
                warnings.append(_set_aside(path))
                db = _connect(path)
        except sqlite3.Error as error:
            raise JournalUnavailable(f"{path}: {error}") from error
        except OSError as error:
            raise JournalUnavailable(f"{path}: {error.strerror}") from error
        return cls(db, path), tuple(warnings)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise JournalUnavailable(f"{self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            if not _means_damage(error):
                raise  # a mistake of ours: a send key stored twice, say
            raise JournalDamaged(f"{self._path}: {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction, all or none."""
        with self._translated():
            if self._db.in_transaction:  # left behind by a rollback that the disk refused
                self._db.execute("ROLLBACK")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # After a full disk SQLite has rolled back by itself.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _run(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return self._db.execute(sql, [_outward(value) for value in values])

    def _rows(self, sql: str, *values: Any) -> list[list[Any]]:
        """For all but messages, whose raw is the one column of bytes."""
        with self._translated():
            return [[_inward(value) for value in row] for row in self._run(sql, *values)]

    def _messages(self, where: str, *values: Any) -> tuple[MessageRow, ...]:
        with self._translated():
            return tuple(map(_message_row, self._run(f"SELECT {_MESSAGE} FROM message WHERE {where}", *values)))

    def _parts(self, where: str, *values: Any) -> tuple[PartRow, ...]:
        return tuple(map(_part_row, self._rows(f"SELECT {_PART} FROM part WHERE {where}", *values)))

    # -- accounts

    def accounts(self) -> tuple[AccountRecord, ...]:
        """In the order they were added: the first is the operator's."""
        rows = self._rows(
            "SELECT account, bot_id, name, role, paused, expired, logged_in_at FROM account ORDER BY place"
        )
        return tuple(
            AccountRecord(
                account=AccountId(account),
                bot_id=bot_id,
                name=name,
                role=Role(role),
                paused=bool(paused),
                expired=bool(expired),
                logged_in_at=logged_in_at,
            )
            for account, bot_id, name, role, paused, expired, logged_in_at in rows
        )

    def clock_offset_ms(self, account: AccountId) -> int | None:
        """The smallest (arrival - create_time_ms) of the account's last 50 messages since it signed in (settled.md 23)."""
        ((offset_ms,),) = self._rows(
            "SELECT min(received_at * 1000 - created_at_ms) FROM (SELECT received_at, created_at_ms FROM message"
            " WHERE account = ? AND row > coalesce((SELECT samples_after FROM account WHERE account = ?), 0)"
            " AND created_at_ms IS NOT NULL ORDER BY row DESC LIMIT ?)",
            account,
            account,
            CLOCK_SAMPLES,
        )
        return round(offset_ms) if offset_ms is not None else None

    def sign_in(self, account: AccountId, bot_id: str, name: str, role: Role | None, at: float) -> AccountRecord:
        """A confirmed login: cursor, reply tokens and windows emptied; pause and expiry end; name (when given), role (when given)
        change; a new account gets role, else the operator's for the first of all and a guest's for every further one.
        The clock samples begin anew. A name that another account bears gets a number behind it.
        """
        with self._writing():
            others = [row[0] for row in self._run("SELECT name FROM account WHERE account <> ?", account)]
            known = self._run("SELECT name, role FROM account WHERE account = ?", account).fetchone()
            if known is None:
                name = _free_name(name or "default", others)
                role = role or (Role.GUEST if others else Role.OPERATOR)
                self._run(
                    "INSERT INTO account (account, bot_id, name, role, logged_in_at) VALUES (?, ?, ?, ?, ?)",
                    account,
                    bot_id,
                    name,
                    role,
                    at,
                )
            else:
                self._run(
                    "UPDATE account SET bot_id = ?, name = ?, role = ?, logged_in_at = ?, cursor = '', paused = 0,"
                    " expired = 0 WHERE account = ?",
                    bot_id,
                    _free_name(name, others) if name else _inward(known[0]),
                    role or known[1],
                    at,
                    account,
                )
            self._run(
                "UPDATE account SET samples_after = (SELECT coalesce(max(row), 0) FROM message) WHERE account = ?",
                account,
            )
            # Nobody has written to the new bot yet, so its reply window is closed too.
            self._run("UPDATE peer SET reply_token = NULL, last_inbound_at = NULL WHERE account = ?", account)
        return next(record for record in self.accounts() if record.account == account)

    def sign_out(self, account: AccountId, at: float) -> tuple[MessageRow, ...]:
        """Logout: waiting messages become DROPPED, cursor and tokens are wiped, the account row goes; conversations
        and parked parts stay.

        returns   the admitted ones among the dropped, QUEUED before, whose peers have to hear of it
        """
        with self._writing():
            waiting = self._messages("account = ? AND state IN ('received', 'queued') ORDER BY row", account)
            for row in waiting:
                self._set_message(SetMessage(row.row, MessageState.DROPPED, at))
            self._run("UPDATE peer SET reply_token = NULL WHERE account = ?", account)
            self._run("DELETE FROM account WHERE account = ?", account)
        return tuple(replace(row, state=MessageState.DROPPED) for row in waiting if row.state is MessageState.QUEUED)

    def set_paused(self, account: AccountId, paused: bool) -> None:
        with self._writing():
            self._run("UPDATE account SET paused = ? WHERE account = ?", int(paused), account)

    def set_expired(self, account: AccountId, expired: bool) -> None:
        with self._writing():
            self._run("UPDATE account SET expired = ? WHERE account = ?", int(expired), account)

    def cursor(self, account: AccountId) -> Cursor:
        """Empty for an account that never polled, or is not known."""
        rows = self._rows("SELECT cursor FROM account WHERE account = ?", account)
        return Cursor(rows[0][0]) if rows else Cursor("")

    # -- the journal

    def record_batch(self, account: AccountId, batch: Batch, at: float) -> Recorded:
        """Raw messages, ids, cursor and clock samples in one transaction. Known (account, sender, id) are replays; so is
        another id with sender, content and created_at_ms all equal. The first new row counts as being handled."""
        rows: list[MessageRow] = []
        replayed = 0
        with self._writing():
            for message in batch.messages:
                if self._is_replay(account, message, at):
                    replayed += 1
                else:
                    rows.append(self._insert_message(account, message, at, handled=0 if rows else 1))
            if batch.cursor:
                self._run("UPDATE account SET cursor = ? WHERE account = ?", batch.cursor, account)
            self._bump("received", len(rows))
            self._bump("replayed", replayed)
        return Recorded(tuple(rows), replayed)

    def _is_replay(self, account: AccountId, message: RawMessage, at: float) -> bool:
        """Claims the message's id. A replay's new id is remembered too: it may come again with its content changed."""
        created_at_ms = _plausible(message.created_at_ms)
        content = sha256(message.content).digest()[:16] if message.content and created_at_ms is not None else None
        same_content = (
            content is not None
            and self._run(
                "SELECT 1 FROM seen WHERE account = ? AND sender = ? AND created_at_ms = ? AND content = ?"
                " AND content IS NOT NULL",
                account,
                message.sender,
                created_at_ms,
                content,
            ).fetchone()
        )
        claimed = self._run(
            "INSERT OR IGNORE INTO seen (account, sender, message_id, created_at_ms, content, at)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            account,
            message.sender,
            message.message_id,
            created_at_ms,
            content,
            at,
        ).rowcount
        return bool(same_content) or claimed == 0

    def _insert_message(self, account: AccountId, message: RawMessage, at: float, *, handled: int) -> MessageRow:
        created_at_ms = _plausible(message.created_at_ms)
        row = self._run(
            "INSERT INTO message (account, sender, message_id, created_at_ms, received_at, raw, state, handled, state_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            account,
            message.sender,
            message.message_id,
            created_at_ms,
            at,
            message.raw,
            MessageState.RECEIVED,
            handled,
            at,
        ).lastrowid
        assert row is not None
        return MessageRow(
            row=row,
            who=PeerKey(account, message.sender),
            message_id=message.message_id,
            created_at_ms=created_at_ms,
            received_at=at,
            raw=message.raw,
            state=MessageState.RECEIVED,
            handled=handled,
            text="",
            late=False,
            generation=None,
        )

    def apply(self, changes: Sequence[Change]) -> None:
        """All of them or none. raises ValueError for a message or part that is not there: nothing is kept then either"""
        with self._writing():
            for change in changes:
                self._apply(change)

    def _apply(self, change: Change) -> None:
        match change:
            case SetMessage():
                self._set_message(change)
            case Heard(row, who, at, reply_token, language, text, late, written_at):
                self._know(who)
                spent = self._sent_since(who, at if written_at is None else written_at)
                # A message without a token leaves the last one in place: it may well be good still.
                self._run(
                    "UPDATE peer SET reply_token = coalesce(?, reply_token), language = ?, last_inbound_at = ?, spent = ?"
                    " WHERE account = ? AND peer = ?",
                    reply_token,
                    language,
                    at,
                    spent,
                    *who,
                )
                found = self._run("UPDATE message SET text = ?, late = ? WHERE row = ?", text, int(late), row).rowcount
                _must_exist(found, f"message {row}")
            case BeginHandling(row):
                found = self._run("UPDATE message SET handled = handled + 1 WHERE row = ?", row).rowcount
                _must_exist(found, f"message {row}")
            case PutBack(row):
                self._run("UPDATE message SET handled = max(handled - 1, 0) WHERE row = ? AND state = 'received'", row)
            case CountRefused(who, at):
                self._count_refused(who, at)
            case ForgetRefused(who):
                self._run("DELETE FROM refused WHERE account = ? AND peer = ?", *who)
            case AddPart(send_key, who, message_row, kind, text, at, state):
                self._run(
                    "INSERT INTO part (send_key, account, peer, message_row, kind, text, state, at, state_at)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    send_key,
                    *who,
                    message_row,
                    kind,
                    text,
                    state,
                    at,
                    at,
                )
            case SetPart():
                self._set_part(change)
            case AddDialog(who, message_row, name, kind, purpose, title, at):
                self._run(
                    "INSERT OR REPLACE INTO dialog (message_row, name, account, peer, kind, purpose, title, at, outcome)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)",
                    message_row,
                    name,
                    *who,
                    kind,
                    purpose,
                    title,
                    at,
                )
            case EndDialog(message_row, name, outcome, at):
                self._run(
                    "UPDATE dialog SET outcome = ?, ended_at = ? WHERE message_row = ? AND name = ? AND outcome IS NULL",
                    outcome,
                    at,
                    message_row,
                    name,
                )
            case AddRule(who, rule, at):
                self._run("INSERT OR IGNORE INTO rule (account, peer, rule, at) VALUES (?, ?, ?, ?)", *who, rule, at)
            case RevokeRule(who, number):
                self._run("DELETE FROM rule WHERE number = ? AND account = ? AND peer = ?", number, *who)
            case StartedTurn(who, at):
                self._started_turn(who, at)
            case SetLimitTold(who, limit, until):
                self._run("INSERT OR REPLACE INTO limit_told VALUES (?, ?, ?, ?)", *who, limit, until)
            case SetSession(who, session_id, at):
                self._set_session(who, session_id, at)
            case SetGeneration(who, generation):
                self._know(who)
                self._run("UPDATE peer SET generation = ? WHERE account = ? AND peer = ?", generation, *who)
            case SetInterruptedNote(who, note):
                self._know(who)
                self._run("UPDATE peer SET interrupted_note = ? WHERE account = ? AND peer = ?", note, *who)
            case Bump(counter, by):
                self._bump(counter, by)
            case AddUsage(who, day, input_tokens, output_tokens):
                self._run(
                    "INSERT INTO usage (account, peer, day, input_tokens, output_tokens) VALUES (?, ?, ?, ?, ?)"
                    " ON CONFLICT (account, peer, day) DO UPDATE SET"
                    " input_tokens = input_tokens + excluded.input_tokens,"
                    " output_tokens = output_tokens + excluded.output_tokens",
                    *who,
                    day,
                    input_tokens,
                    output_tokens,
                )
            case _:
                assert_never(change)

    def _know(self, who: PeerKey) -> None:
        self._run("INSERT OR IGNORE INTO peer (account, peer) VALUES (?, ?)", *who)

    def _sent_since(self, who: PeerKey, written_at: float) -> int:
        """What the service may count as sent after that moment: what has landed since, and what is on its way."""
        row = self._run(
            "SELECT count(*) FROM"
            " (SELECT state, state_at, attempts FROM part WHERE account = ? AND peer = ? ORDER BY place DESC LIMIT ?)"
            " WHERE attempts > 0 AND (state = 'sending'"
            " OR state IN ('accepted', 'unconfirmed', 'dropped') AND state_at > ?)",
            *who,
            SENT_LATELY,
            written_at,
        ).fetchone()
        return int(row[0])

    def _bump(self, counter: str, by: int) -> None:
        if counter not in COUNTERS:
            raise ValueError(f"no counter {counter!r}")
        if by:
            self._run(
                "INSERT INTO counter (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + ?",
                counter,
                by,
                by,
            )

    def _set_message(self, change: SetMessage) -> None:
        before = self._run("SELECT state, account, sender FROM message WHERE row = ?", change.row).fetchone()
        _must_exist(before is not None, f"message {change.row}")
        self._run(
            "UPDATE message SET state = ?, state_at = ?, generation = coalesce(?, generation) WHERE row = ?",
            change.state,
            change.at,
            change.generation,
            change.row,
        )
        if change.state in (MessageState.REFUSED, MessageState.IGNORED):
            self._run("UPDATE message SET raw = x'' WHERE row = ?", change.row)
        if change.state is MessageState.RUNNING:
            # From here on it belongs to the conversation that its peer has now; what waits runs in a fresh one.
            self._run(
                "UPDATE message SET conversation ="
                " coalesce((SELECT conversation FROM peer WHERE account = ? AND peer = ?), 0) WHERE row = ?",
                before[1],
                before[2],
                change.row,
            )
        if before[0] != change.state and change.state in _COUNTER_OF:
            self._bump(_COUNTER_OF[change.state], 1)

    def _set_part(self, change: SetPart) -> None:
        before = self._run("SELECT state, account, peer FROM part WHERE send_key = ?", change.send_key).fetchone()
        _must_exist(before is not None, "part")
        self._run(
            "UPDATE part SET state = ?, state_at = ?, message_id = coalesce(?, message_id), attempts = attempts + ?"
            " WHERE send_key = ?",
            change.state,
            change.at,
            change.message_id,
            int(change.state is PartState.SENDING),
            change.send_key,
        )
        if change.spend:
            self._run(
                "UPDATE peer SET spent = spent + ? WHERE account = ? AND peer = ?", change.spend, before[1], before[2]
            )
        if before[0] != change.state and change.state in _COUNTER_OF_PART:
            self._bump(_COUNTER_OF_PART[change.state], 1)

    def _count_refused(self, who: PeerKey, at: float) -> None:
        self._run(
            "INSERT INTO refused (account, peer, count, last_at) VALUES (?, ?, 1, ?)"
            " ON CONFLICT (account, peer) DO UPDATE SET count = count + 1, last_at = excluded.last_at",
            *who,
            at,
        )
        self._run(
            "DELETE FROM refused WHERE rowid IN (SELECT rowid FROM refused ORDER BY last_at DESC LIMIT -1 OFFSET ?)",
            REFUSED_KEPT,
        )

    def _started_turn(self, who: PeerKey, at: float) -> None:
        self._know(who)
        self._run(
            "UPDATE peer SET turns = turns + 1, interrupted_note = '' WHERE account = ? AND peer = ?",
            *who,
        )
        # Starts in the future come from a clock that was set back since; they would block the peer for as long.
        self._run(
            "DELETE FROM turn_start WHERE account = ? AND peer = ? AND (at <= ? OR at > ?)", *who, at - HOUR_S, at
        )
        self._run("INSERT INTO turn_start (account, peer, at) VALUES (?, ?, ?)", *who, at)

    def _set_session(self, who: PeerKey, session_id: SessionId | None, at: float) -> None:
        self._know(who)
        if session_id is None:
            self._run(
                "UPDATE peer SET session_id = NULL, session_started_at = NULL, conversation = conversation + 1"
                " WHERE account = ? AND peer = ?",
                *who,
            )
        else:
            self._run(
                "UPDATE peer SET session_id = ?, session_started_at = ?"
                " WHERE account = ? AND peer = ? AND session_id IS NOT ?",
                session_id,
                at,
                *who,
                session_id,
            )

    # -- reads

    def open_messages(self) -> tuple[MessageRow, ...]:
        """RECEIVED, QUEUED, RUNNING and ASKING rows, oldest first."""
        return self._messages(f"{_OPEN_MESSAGE} ORDER BY row")

    def open_parts(self) -> tuple[PartRow, ...]:
        """PENDING, SENDING and PARKED parts, oldest first."""
        return self._parts(f"{_OPEN_PART} ORDER BY place")

    def landed(self) -> dict[PeerKey, tuple[float, ...]]:
        """When the last parts were sent that are open no more, in Unix seconds, oldest first."""
        rows = self._rows(
            "SELECT account, peer, state_at FROM (SELECT * FROM part ORDER BY place DESC LIMIT ?)"
            " WHERE attempts > 0 AND state IN ('accepted', 'unconfirmed', 'dropped') ORDER BY state_at",
            LANDED_LATELY,
        )
        found: dict[PeerKey, tuple[float, ...]] = {}
        for account, peer, at in rows:
            who = PeerKey(AccountId(account), PeerId(peer))
            found[who] = (*found.get(who, ()), at)
        return found

    def message(self, row: int) -> MessageRow | None:
        return next(iter(self._messages("row = ?", row)), None)

    def wordless_before(self, who: PeerKey, row: int) -> tuple[MessageRow, ...]:
        """Messages that were dealt with without a turn and without words, since the peer's last turn before this row."""
        return self._messages(
            "account = ?1 AND sender = ?2 AND row < ?3 AND state = 'command' AND text = '' AND row > coalesce("
            "(SELECT max(row) FROM message WHERE account = ?1 AND sender = ?2 AND row < ?3 AND conversation IS NOT NULL), 0)"
            " ORDER BY row",
            *who,
            row,
        )

    def last_turn_at(self, who: PeerKey, row: int) -> float | None:
        """When the last turn before this row ended or was still under way, in the conversation that the peer has now;
        None in a fresh one. Unix seconds."""
        rows = self._rows(
            "SELECT max(message.state_at) FROM message JOIN peer USING (account, conversation)"
            " WHERE account = ?1 AND peer = ?2 AND sender = ?2 AND row < ?3",
            *who,
            row,
        )
        at: float | None = rows[0][0]
        return at

    def message_text(self, account: AccountId, message_id: MessageId) -> str | None:
        """What a quoted id said: an inbound's text or an accepted part's."""
        rows = self._rows(
            "SELECT text FROM message WHERE account = ?1 AND message_id = ?2 AND text <> ''"
            " UNION ALL SELECT text FROM part WHERE account = ?1 AND message_id = ?2 AND message_id IS NOT NULL LIMIT 1",
            account,
            message_id,
        )
        text: str | None = rows[0][0] if rows else None
        return text

    def peer(self, who: PeerKey) -> PeerRecord:
        """A peer never heard of yields the defaults (language "en", generation 0)."""
        rows = self._rows(f"SELECT {_PEER} FROM peer WHERE account = ? AND peer = ?", *who)
        if rows:
            return self._peer_record(rows[0])
        uids = self._rows("SELECT uid FROM uid WHERE account = ? AND peer = ?", *who)
        return self._peer_record([*who, "en", None, None, 0, None, None, 0, 0, "", uids[0][0] if uids else None])

    def peers(self) -> tuple[PeerRecord, ...]:
        """Everybody who was ever admitted, oldest first."""
        return tuple(self._peer_record(row) for row in self._rows(f"SELECT {_PEER} FROM peer ORDER BY place"))

    def _peer_record(self, row: list[Any]) -> PeerRecord:
        account, peer, language, token, heard_at, spent, session, session_at, generation, turns, note, uid = row
        starts = self._rows("SELECT at FROM turn_start WHERE account = ? AND peer = ? ORDER BY at", account, peer)
        told = self._rows("SELECT name, until FROM limit_told WHERE account = ? AND peer = ?", account, peer)
        return PeerRecord(
            who=PeerKey(AccountId(account), PeerId(peer)),
            language=language,
            reply_token=token,
            last_inbound_at=heard_at,
            spent=spent,
            session_id=session,
            session_started_at=session_at,
            generation=Generation(generation),
            turns=turns,
            turns_at=tuple(at for (at,) in starts),
            interrupted_note=note,
            uid=uid,
            told_until={name: until for name, until in told},
        )

    def history(self, who: PeerKey, count: int) -> tuple[HistoryRow, ...]:
        """The last lines of the current conversation, oldest first: each prompt is one, and each turn's reply, its
        bubbles joined. Commands, dialogs and notices are not part of it."""
        if count <= 0:
            return ()
        prompts = self._rows(
            "SELECT row, text, received_at FROM message WHERE account = ?1 AND sender = ?2"
            " AND (conversation = (SELECT conversation FROM peer WHERE account = ?1 AND peer = ?2)"
            "      OR (conversation IS NULL AND state = 'queued'))"
            " ORDER BY row DESC LIMIT ?3",
            *who,
            count,
        )
        lines: list[HistoryRow] = []
        for row, text, at in reversed(prompts):
            lines.append(HistoryRow(from_peer=True, text=text, at=at, flag=""))
            parts = self._rows(
                "SELECT CASE kind WHEN 'file' THEN '[' || text || ']' ELSE text END, state, state_at FROM part"
                " WHERE message_row = ? AND kind IN ('reply', 'file') AND state <> 'dropped'"
                " ORDER BY place",
                row,
            )
            if parts:
                states = {PartState(state) for _, state, _ in parts}
                lines.append(
                    HistoryRow(
                        from_peer=False,
                        text="\n".join(part for part, _, _ in parts),
                        at=max(at for _, _, at in parts),
                        flag=next((flag for state, flag in _FLAGS if state in states), ""),
                    )
                )
        return tuple(lines[-count:])

    def dialogs(self, message_row: int) -> tuple[DialogRecord, ...]:
        """Those of one turn, in the order in which they were asked."""
        return tuple(
            DialogRecord(PeerKey(AccountId(account), PeerId(peer)), row, DialogId(name), *rest)
            for account, peer, row, name, *rest in self._rows(
                "SELECT account, peer, message_row, name, kind, purpose, title, at, outcome, ended_at FROM dialog"
                " WHERE message_row = ? ORDER BY at",
                message_row,
            )
        )

    def end_lost_dialogs(self, at: float) -> int:
        """At the start: whoever asked is gone. returns how many were open"""
        with self._writing():
            return self._run("UPDATE dialog SET outcome = 'lost', ended_at = ? WHERE outcome IS NULL", at).rowcount

    def rules(self, who: PeerKey) -> tuple[RuleRecord, ...]:
        """Oldest first."""
        return tuple(
            RuleRecord(*row)
            for row in self._rows(
                "SELECT number, rule, at FROM rule WHERE account = ? AND peer = ? ORDER BY number", *who
            )
        )

    def refused(self) -> tuple[RefusedRecord, ...]:
        """The latest first."""
        return tuple(
            RefusedRecord(PeerKey(AccountId(account), PeerId(peer)), count, last_at)
            for account, peer, count, last_at in self._rows(
                "SELECT account, peer, count, last_at FROM refused ORDER BY last_at DESC"
            )
        )

    def parked(self) -> tuple[ParkedRecord, ...]:
        """The longest waiting first."""
        return tuple(
            ParkedRecord(PeerKey(AccountId(account), PeerId(peer)), count, since)
            for account, peer, count, since in self._rows(
                f"SELECT account, peer, count(*), min(at) FROM part WHERE {_OPEN_PART} AND state = 'parked'"
                " GROUP BY account, peer ORDER BY min(at)"
            )
        )

    def failures(self, since: float) -> tuple[FailureRecord, ...]:
        """The latest first."""
        return tuple(
            FailureRecord(PeerKey(AccountId(account), PeerId(peer)), MessageState(state), count, last_at)
            for account, peer, state, count, last_at in self._rows(
                "SELECT account, sender, state, count(*), max(state_at) FROM message"
                " WHERE state IN ('failed', 'dead') AND state_at >= ?"
                " GROUP BY account, sender, state ORDER BY max(state_at) DESC",
                since,
            )
        )

    # -- events

    def add_events(self, events: Sequence[EventRecord]) -> int:
        """Number and keep them (their own seq does not count). returns the last number given"""
        with self._writing():
            for one in events:
                last = self._run(
                    "INSERT INTO event (at, event, account, peer, message_id, data) VALUES (?, ?, ?, ?, ?, ?)",
                    one.at,
                    one.event,
                    one.account,
                    one.peer,
                    one.message_id,
                    one.data,
                ).lastrowid
            (first,) = self._run("SELECT min(seq) FROM event").fetchone()
            if last is not None and last - first >= EVENTS_KEPT + EVENTS_SLACK:
                self._run("DELETE FROM event WHERE seq <= ?", last - EVENTS_KEPT)
        return last or 0

    def last_event(self) -> int:
        """The highest number ever given; 0 before the first."""
        rows = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'event'")
        return int(rows[0][0]) if rows else 0

    def events_after(self, seq: int, count: int) -> tuple[EventRecord, ...]:
        """The next ones, oldest first."""
        return self._events("seq > ? ORDER BY seq LIMIT ?", seq, count)

    def last_of_each(self, events: Sequence[str]) -> tuple[EventRecord, ...]:
        """The newest event of each of these kinds that is still kept, newest first."""
        places = ", ".join("?" * len(events))
        return self._events(
            f"seq IN (SELECT max(seq) FROM event WHERE event IN ({places}) GROUP BY event) ORDER BY seq DESC", *events
        )

    def _events(self, where: str, *values: Any) -> tuple[EventRecord, ...]:
        rows = self._rows(f"SELECT seq, at, event, account, peer, message_id, data FROM event WHERE {where}", *values)
        return tuple(EventRecord(*row) for row in rows)

    def trace(self, message_id: MessageId) -> tuple[Traced, ...]:
        """Every message of that id, of whichever account; with its own events and its peer's meanwhile."""
        traced = []
        for message in self._messages("message_id = ? ORDER BY row", message_id):
            ((state_at,),) = self._rows("SELECT state_at FROM message WHERE row = ?", message.row)
            parts = self._rows(
                "SELECT kind, state, attempts, at, state_at FROM part WHERE message_row = ? ORDER BY place", message.row
            )
            over = float("inf") if message.state in OPEN_MESSAGES else max([state_at, *(part[4] for part in parts)]) + 1
            events = self._events(
                "message_id = ?1 AND (account IS NULL OR account = ?2) OR"
                " message_id IS NULL AND account = ?2 AND peer = ?3 AND at BETWEEN ?4 AND ?5 ORDER BY seq",
                message_id,
                *message.who,
                message.received_at,
                over,
            )
            offset_ms = self.clock_offset_ms(message.who.account)
            written_at = None
            if message.created_at_ms is not None and offset_ms is not None:
                written_at = (message.created_at_ms + offset_ms) / 1000
            traced.append(
                Traced(
                    message.who,
                    message.row,
                    message.state,
                    message.received_at,
                    state_at,
                    written_at,
                    tuple(TracedPart(PartKind(k), PartState(s), tries, at, ended) for k, s, tries, at, ended in parts),
                    events,
                )
            )
        return tuple(traced)

    def counters(self) -> dict[str, int]:
        """All of COUNTERS."""
        return dict.fromkeys(COUNTERS, 0) | {
            name: value for name, value in self._rows("SELECT name, value FROM counter")
        }

    def tokens_of(self, who: PeerKey, day: str) -> int:
        """All that this peer has used on that day."""
        query = "SELECT input_tokens + output_tokens FROM usage WHERE account = ? AND peer = ? AND day = ?"
        rows = self._rows(query, *who, day)
        return int(rows[0][0]) if rows else 0

    def uid_for(self, who: PeerKey, base: int, *, had: int | None = None) -> int:
        """The peer's uid for life, taken from base on, never used twice.

        had   whose its folders are, from a journal that is lost; kept when nobody else has it
        """
        with self._writing():
            if had is not None:
                self._run("INSERT OR IGNORE INTO uid (uid, account, peer) VALUES (?, ?, ?)", had, *who)
            self._run(
                "INSERT OR IGNORE INTO uid (uid, account, peer)"
                " VALUES (max(?, (SELECT coalesce(max(uid) + 1, 0) FROM uid)), ?, ?)",
                base,
                *who,
            )
            uid: int = self._run("SELECT uid FROM uid WHERE account = ? AND peer = ?", *who).fetchone()[0]
        return uid

    def forget(self, who: PeerKey, at: float) -> None:
        """What this peer wrote and was told goes, and with it the session. Ids stay for as long as a replay may come,
        and so do tokens used, turns of this hour and the uid."""
        with self._translated():
            self._run("PRAGMA secure_delete = ON").fetchall()
        with self._writing():
            self._run("DELETE FROM part WHERE account = ? AND peer = ?", *who)
            self._run(f"DELETE FROM message WHERE account = ? AND sender = ? AND NOT ({_OPEN_MESSAGE})", *who)
            self._run("DELETE FROM dialog WHERE account = ? AND peer = ? AND outcome IS NOT NULL", *who)
            self._run("DELETE FROM event WHERE event = 'dialog_asked' AND account = ? AND peer = ?", *who)  # its title
            self._run("DELETE FROM rule WHERE account = ? AND peer = ?", *who)
            self._run("UPDATE peer SET interrupted_note = '' WHERE account = ? AND peer = ?", *who)
            self._set_session(who, None, at)
        self._give_back()

    def prune(self, now: float, keep_days: float) -> tuple[PartRow, ...]:
        """Closed messages older than keep_days go with their parts, ids after 7 days; parts that nobody fetched for 7
        days are DROPPED. Then a checkpoint.

        returns   the parts dropped just now: dead letters, for doctor and hook
        """
        texts_before, ids_before = now - keep_days * 86_400.0, now - SEEN_S
        with self._writing():
            dead = self._parts(f"{_OPEN_PART} AND at < ? ORDER BY place", ids_before)
            for part in dead:
                self._set_part(SetPart(part.send_key, PartState.DROPPED, now))
            self._run(f"DELETE FROM part WHERE NOT ({_OPEN_PART}) AND at < ?", texts_before)
            self._run(
                f"DELETE FROM message WHERE NOT ({_OPEN_MESSAGE}) AND received_at < ?"
                " AND NOT EXISTS (SELECT 1 FROM part WHERE part.message_row = message.row)",
                texts_before,
            )
            self._run("DELETE FROM dialog WHERE at < ? AND outcome IS NOT NULL", texts_before)
            self._run("DELETE FROM seen WHERE at < ?", ids_before)
            self._run("DELETE FROM turn_start WHERE at <= ?", now - HOUR_S)
            self._run("DELETE FROM limit_told WHERE until <= ?", now)
            self._run("DELETE FROM usage WHERE day < date(?, 'unixepoch')", now - USAGE_S)
        self._give_back()
        return dead

    def _give_back(self) -> None:
        """Free pages leave the file, and what was written leaves the log beside it."""
        with self._translated():
            self._db.executescript("PRAGMA incremental_vacuum")  # execute() would take one page and stop
            # A reader elsewhere only postpones the rest to the next time: nobody waits for it.
            self._run("PRAGMA busy_timeout = 0").fetchall()
            self._run("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._run(f"PRAGMA busy_timeout = {BUSY_MS}").fetchall()


class Journal:
    """Runs Store's methods, one after the other, on its own thread: `await journal.do(Store.apply, changes)`."""

    def __init__(self, store: Store, thread: ThreadPoolExecutor) -> None:
        self._store = store
        self._thread = thread

    @classmethod
    async def open(cls, path: Path) -> tuple[Self, tuple[str, ...]]:
        """As Store.open, on the journal's thread."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        try:
            store, warnings = await asyncio.get_running_loop().run_in_executor(thread, Store.open, path)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(store, thread), warnings

    async def do(self, method: Callable[Concatenate[Store, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A caller that is cancelled while its transaction runs leaves it whole: kept, or never begun."""
        call = partial(method, self._store, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        """After whatever was asked before."""
        await self.do(Store.close)
        self._thread.shutdown()


# --- opening --------------------------------------------------------------------------------------------------


def _connect(path: Path) -> sqlite3.Connection:
    """Open or create, and check. raises sqlite3.DatabaseError when damaged, OperationalError, OSError, BridgeError"""
    # Born private: with a umask alone the file would be readable for an instant. -wal and -shm inherit its mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    os.chmod(path, 0o600)
    db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_MS / 1000)
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (owner,) = db.execute("PRAGMA application_id").fetchone()
        empty = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
        if not empty and owner != APPLICATION_ID:
            raise sqlite3.DatabaseError("the database of another program")
        if version > SCHEMA_VERSION:
            raise _too_new(path, version)
        _quick_check(db)
        if empty:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # prune gives its pages back, and the words in them
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("PRAGMA synchronous = FULL")
        if empty:
            db.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
                f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
            # Into the file itself, where an older bridge looks before it opens anything.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.executescript(f"BEGIN IMMEDIATE; {_EVENTS} {_DIALOGS} COMMIT;")
    except BaseException:
        db.close()
        raise
    return db


def _is_damaged(path: Path) -> bool:
    """What can be told without opening. raises BridgeError for a newer schema, of which no byte may change"""
    if not path.exists():
        return False
    if not path.is_file():
        return True
    if path.stat().st_uid == os.geteuid():
        path.chmod(0o600)
    with path.open("rb") as file:
        header = file.read(100)
    if not header:
        return False
    if not header.startswith(b"SQLite format 3\0") or len(header) < 100:
        return True
    version, owner = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    if owner == APPLICATION_ID and version > SCHEMA_VERSION:
        raise _too_new(path, version)
    return False


def _quick_check(db: sqlite3.Connection) -> None:
    """SQLite's own look at the file, for CHECK_S at most. raises sqlite3.DatabaseError"""
    until = time.monotonic() + CHECK_S
    db.set_progress_handler(lambda: int(time.monotonic() > until), 10_000)
    try:
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return
    finally:
        db.set_progress_handler(None, 0)
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)


def _means_damage(error: sqlite3.DatabaseError) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_IOERR_SHORT_READ
    return type(error) is sqlite3.DatabaseError  # its other children are mistakes of the caller's


def _set_aside(path: Path) -> str:
    """Move the file and its two companions out of the way, names kept in step so that SQLite can still open them."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    for suffix in ("-wal", "-shm", ""):
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(target.with_name(target.name + suffix))
    return f"{path}: damaged, now {target.name} beside it; a new journal begins without what stood there"


def _too_new(path: Path, version: int) -> BridgeError:
    return BridgeError(
        f"{path}: written by a newer bridge-supervisor (journal version {version}, this one reads {SCHEMA_VERSION});"
        " install that one again, or choose another --home"
    )


# --- values ---------------------------------------------------------------------------------------------------


def _outward(value: Any) -> Any:
    """A lone surrogate half is no text to SQLite: such a string is stored as its bytes, and equals only itself."""
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return str(value)


def _inward(value: Any) -> Any:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def _plausible(created_at_ms: int | None) -> int | None:
    """A time that fits the column and a clock; anything else counts as not said."""
    return created_at_ms if created_at_ms is not None and 0 < created_at_ms < 2**53 else None


def _free_name(wanted: str, taken: Sequence[str]) -> str:
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}-{number}"
    return name


def _must_exist(found: object, what: str) -> None:
    if not found:
        raise ValueError(f"no {what} in the journal")


def _message_row(row: Sequence[Any]) -> MessageRow:
    number, account, sender, message_id, created_at_ms, received_at, raw, state, handled, text, late, generation = row
    return MessageRow(
        row=number,
        who=PeerKey(_inward(account), _inward(sender)),
        message_id=_inward(message_id),
        created_at_ms=created_at_ms,
        received_at=received_at,
        raw=raw,
        state=MessageState(state),
        handled=handled,
        text=_inward(text),
        late=bool(late),
        generation=generation,
    )


def _part_row(row: list[Any]) -> PartRow:
    send_key, account, peer, message_row, place, kind, text, state, attempts, message_id = row
    return PartRow(
        send_key=SendKey(send_key),
        who=PeerKey(account, peer),
        message_row=message_row,
        order=place,
        kind=PartKind(kind),
        text=text,
        state=PartState(state),
        attempts=attempts,
        message_id=message_id,
    )
