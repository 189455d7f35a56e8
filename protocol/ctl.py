"""The control socket: every verb as one row, its request and its replies.

One request frame, then replies until one of FINAL. The socket is a ZeroMQ ROUTER of its own with its own CURVE key,
readable by the operator alone. Requests and replies are msgpack tagged Structs, capped like every frame.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from protocol.codec import Codec
from protocol.content import Access, Role

CTL_VERSION = 1


# --- requests -------------------------------------------------------------------------------------------------


class Status(msgspec.Struct, frozen=True, tag=True):
    pass


class Login(msgspec.Struct, frozen=True, tag=True):
    """name and role: empty or None leave what the account has."""

    name: str = ""
    role: Role | None = None


class VerifyCode(msgspec.Struct, frozen=True, tag=True):
    """The answer to CodeWanted, on the same connection."""

    code: str


class Accounts(msgspec.Struct, frozen=True, tag=True):
    pass


class Logout(msgspec.Struct, frozen=True, tag=True):
    account: str = ""
    yes: bool = False


class Pause(msgspec.Struct, frozen=True, tag=True):
    account: str = ""


class Resume(msgspec.Struct, frozen=True, tag=True):
    account: str = ""


class Stop(msgspec.Struct, frozen=True, tag=True):
    peer: str


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Withdraw the question that this peer is being asked; its turn goes on."""

    peer: str


class Rules(msgspec.Struct, frozen=True, tag=True):
    """peer empty: everybody's."""

    peer: str = ""


class Revoke(msgspec.Struct, frozen=True, tag=True):
    peer: str
    rule: int


class Reset(msgspec.Struct, frozen=True, tag=True):
    peer: str


class History(msgspec.Struct, frozen=True, tag=True):
    peer: str
    count: int = 10


class Allow(msgspec.Struct, frozen=True, tag=True):
    """tools None = all of the access level; peer empty: the refused ones are offered."""

    peer: str = ""
    tools: tuple[str, ...] | None = None
    access: Access | None = None
    yes: bool = False


class Deny(msgspec.Struct, frozen=True, tag=True):
    peer: str
    yes: bool = False


class Forget(msgspec.Struct, frozen=True, tag=True):
    peer: str
    yes: bool = False


class Send(msgspec.Struct, frozen=True, tag=True):
    """One text or one picture to the owner of an operator's account. image: an absolute path."""

    account: str = ""
    image: str = ""
    text: str = ""


class Audit(msgspec.Struct, frozen=True, tag=True):
    """Check the chain of the audit log."""

    action: str = "verify"


class Doctor(msgspec.Struct, frozen=True, tag=True):
    """probe: have throw-away workers try to break out."""

    probe: bool = False


class Events(msgspec.Struct, frozen=True, tag=True):
    """since: events with a higher number; None: all that are kept, or the last few where it follows."""

    since: int | None = None
    follow: bool = False


class Trace(msgspec.Struct, frozen=True, tag=True):
    """message_id: WeChat's; ACCOUNT/ID where two accounts had one of the same id."""

    message_id: str


class Metrics(msgspec.Struct, frozen=True, tag=True):
    pass


class Reload(msgspec.Struct, frozen=True, tag=True):
    pass


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    pass


CtlRequest = (
    Status
    | Login
    | VerifyCode
    | Accounts
    | Logout
    | Pause
    | Resume
    | Stop
    | Cancel
    | Rules
    | Revoke
    | Reset
    | History
    | Allow
    | Deny
    | Forget
    | Send
    | Audit
    | Doctor
    | Events
    | Trace
    | Metrics
    | Reload
    | Shutdown
)

# --- replies --------------------------------------------------------------------------------------------------


class IsolationRow(msgspec.Struct, frozen=True):
    mode: str
    level: str
    missing: list[str]


class LockRow(msgspec.Struct, frozen=True):
    held: bool
    pid: int | None


class AccountRow(msgspec.Struct, frozen=True):
    account: str  # the bot id
    name: str
    owner: str
    role: str
    state: str  # running | stale | paused | expired | stopped | locked_out
    token_age_s: float | None
    last_poll_age_s: float | None
    last_hold_s: float | None
    poll_failures: int
    last_error: str | None
    lock: LockRow


class TurnRow(msgspec.Struct, frozen=True):
    message_id: str
    age_s: float


class WorkerRow(msgspec.Struct, frozen=True):
    pid: int
    generation: int
    idle_s: float
    rss_bytes: int
    isolation: list[str]
    isolation_missing: list[str]
    limits: dict[str, str]


class PeerRow(msgspec.Struct, frozen=True):
    peer: str
    label: str
    account: str
    role: str
    agent: str
    access: str
    state: str  # idle | queued | starting | running | asking | stopping
    turn: TurnRow | None
    queued: int
    turns: int
    budget_left: int
    parked_parts: int
    session_age_s: float | None
    media_bytes: int
    worker: WorkerRow | None


class RefusedRow(msgspec.Struct, frozen=True):
    peer: str
    account: str
    count: int
    last_age_s: float


class DialogRow(msgspec.Struct, frozen=True):
    peer: str
    account: str
    kind: str
    title: str
    age_s: float
    expires_in_s: float


class StatusReply(msgspec.Struct, frozen=True, tag=True):
    """What `bridge-ctl status --json` prints, key for key. Times are ages in seconds.

    problems   one line each for all that is wrong, with the command that mends it; not in the JSON
    """

    version: str
    pid: int
    uptime_s: float
    home: str
    isolation: IsolationRow
    accounts: list[AccountRow]
    peers: list[PeerRow]
    refused: list[RefusedRow]
    dialogs: list[DialogRow]
    counters: dict[str, int]
    problems: list[str]


class AccountsReply(msgspec.Struct, frozen=True, tag=True):
    accounts: list[AccountRow]


class HistoryLine(msgspec.Struct, frozen=True):
    """who: peer or bot. age_s: seconds ago. flag: '' or why a reply has not arrived (parked, rejected, unconfirmed)."""

    who: str
    text: str
    age_s: float
    flag: str = ""


class HistoryReply(msgspec.Struct, frozen=True, tag=True):
    peer: str
    lines: list[HistoryLine]


class RuleRow(msgspec.Struct, frozen=True):
    """An "always" answer. rule: the number that `revoke` takes. text: what is no longer asked about"""

    peer: str
    account: str
    rule: int
    text: str
    age_s: float


class RulesReply(msgspec.Struct, frozen=True, tag=True):
    rules: list[RuleRow]


class Severity(StrEnum):
    OK = "ok"
    WARN = "warn"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. id: closed list, see core/doctor.py. account: a bot id. fix: what mends it."""

    id: str
    severity: Severity
    text: str
    account: str | None = None
    peer: str | None = None
    fix: str | None = None


class DoctorReply(msgspec.Struct, frozen=True, tag=True):
    """ok: no finding is an error. level: of isolation."""

    ok: bool
    level: str
    findings: list[Finding]


class EventRow(msgspec.Struct, frozen=True):
    """at: UTC, as 2026-11-30T12:00:00.000Z. account: a bot id. data: plain values, never what people wrote."""

    seq: int
    at: str
    event: str
    account: str | None
    peer: str | None
    message_id: str | None
    data: dict[str, str | int | float | bool | None]


class EventBatch(msgspec.Struct, frozen=True, tag=True):
    """Events: the next ones. Done follows the last, unless they are followed."""

    events: list[EventRow]


class TraceStep(msgspec.Struct, frozen=True):
    """after_ms: since the message was recorded; below zero for what came before."""

    after_ms: float
    what: str
    data: dict[str, str | int | float | bool | None]


class LatencyRow(msgspec.Struct, frozen=True):
    """Where the time went, in milliseconds; None: did not happen, or is not known any more.

    hold    from WeChat's stamp, on our clock, to the journal
    queue   from there to the turn, without start
    start   of a worker, as far as this message waited for one
    agent   from the turn's beginning to its outcome
    send    from the first bubble's making to the last one's receipt; overlaps agent where an answer streams
    """

    hold_ms: float | None
    queue_ms: float | None
    start_ms: float | None
    agent_ms: float | None
    send_ms: float | None


class TraceReply(msgspec.Struct, frozen=True, tag=True):
    message_id: str
    account: str
    peer: str
    state: str
    latency: LatencyRow
    steps: list[TraceStep]


class MetricsReply(msgspec.Struct, frozen=True, tag=True):
    """Prometheus' text format, version 0.0.4."""

    text: str


class QrShown(msgspec.Struct, frozen=True, tag=True):
    """Login: encode this URL as a QR code; a later QrShown replaces it."""

    url: str
    number: int
    of: int


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Login: one line to show, e.g. that the phone has scanned."""

    line: str


class CodeWanted(msgspec.Struct, frozen=True, tag=True):
    """Login: ask the human for the number that WeChat shows and answer with VerifyCode."""

    again: bool


class NeedsYes(msgspec.Struct, frozen=True, tag=True):
    """Final: nothing was done; ask these lines and call again with yes."""

    question: list[str]


class Offered(msgspec.Struct, frozen=True, tag=True):
    """Final: `allow` without a peer, the refused ones to choose from."""

    refused: list[RefusedRow]


class Done(msgspec.Struct, frozen=True, tag=True):
    """Final: exit 0 with these lines on stdout."""

    lines: list[str]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Final: exit with this code (1 refused or failed, 2 usage), the line on stderr."""

    code: int
    line: str


CtlReply = (
    StatusReply
    | AccountsReply
    | HistoryReply
    | RulesReply
    | DoctorReply
    | EventBatch
    | TraceReply
    | MetricsReply
    | QrShown
    | Progress
    | CodeWanted
    | NeedsYes
    | Offered
    | Done
    | Failed
)
FINAL = (
    StatusReply,
    AccountsReply,
    HistoryReply,
    RulesReply,
    DoctorReply,
    TraceReply,
    MetricsReply,
    NeedsYes,
    Offered,
    Done,
    Failed,
)

ctl_request: Codec[CtlRequest] = Codec(CtlRequest)
ctl_reply: Codec[CtlReply] = Codec(CtlReply)

# --- the table ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Argument:
    """name   the request's field; flag "" = positional; required only counts for positionals
    kind   text | number (1 and more) | count (0 and more) | yes | json | choice | names (comma separated)"""

    name: str
    flag: str
    metavar: str
    help: str
    kind: str = "text"
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verb:
    """One row: help, usage line and completions come from here."""

    name: str
    request: type[Any]
    help: str
    arguments: tuple[Argument, ...] = ()
    json: bool = False


_ACCOUNT = Argument("account", "", "ACCOUNT", "name, bot id or owner of an account")
_PEER = Argument(
    "peer", "", "PEER", "id or label of a peer, with ACCOUNT/ before it where two accounts know it", required=True
)
_YES = Argument("yes", "--yes", "", "do not ask", kind="yes")

VERBS: tuple[Verb, ...] = (
    Verb(
        "status",
        Status,
        "show accounts, peers, workers and counters",
        (Argument("watch", "--watch", "", "show it again every second until interrupted", kind="yes"),),
        json=True,
    ),
    Verb(
        "login",
        Login,
        "sign in with WeChat by a QR code",
        (
            Argument("name", "--name", "NAME", "what to call the account"),
            Argument("role", "--role", "ROLE", "whose account it is", kind="choice", choices=("operator", "guest")),
        ),
    ),
    Verb("accounts", Accounts, "list the signed-in accounts", json=True),
    Verb("logout", Logout, "forget an account's credentials and stop polling it", (_ACCOUNT, _YES)),
    Verb("pause", Pause, "stop polling while running turns finish", (_ACCOUNT,)),
    Verb("resume", Resume, "poll a paused account again", (_ACCOUNT,)),
    Verb("stop", Stop, "stop a peer's running turn", (_PEER,)),
    Verb("cancel", Cancel, "withdraw the question that a peer is being asked", (_PEER,)),
    Verb(
        "rules",
        Rules,
        "list what was answered with always",
        (Argument("peer", "", "PEER", "id or label of a peer; without it everybody's"),),
        json=True,
    ),
    Verb(
        "revoke",
        Revoke,
        "take an always answer back",
        (_PEER, Argument("rule", "", "RULE", "its number, as `rules` shows it", kind="count", required=True)),
    ),
    Verb("reset", Reset, "start a fresh conversation for a peer", (_PEER,)),
    Verb(
        "history",
        History,
        "show a peer's recent messages",
        (_PEER, Argument("count", "", "N", "how many, at most 20", kind="number")),
        json=True,
    ),
    Verb(
        "allow",
        Allow,
        "admit a refused sender, at once",
        (
            Argument("peer", "", "PEER", "id or label; without it the refused senders are offered"),
            Argument("tools", "--tools", "a,b", "only these tools", kind="names"),
            Argument(
                "access",
                "--access",
                "LEVEL",
                "what the peer may reach",
                kind="choice",
                choices=tuple(a.value for a in Access),
            ),
            _YES,
        ),
    ),
    Verb("deny", Deny, "refuse a peer from now on and stop its turn", (_PEER, _YES)),
    Verb(
        "forget",
        Forget,
        "delete a peer's conversation, workspace, media and texts",
        (_PEER, _YES),
    ),
    Verb(
        "send",
        Send,
        "send a text or a picture to an operator account's owner",
        (
            Argument("account", "--account", "NAME", "whose owner; needed where there are several"),
            Argument("image", "--image", "FILE", "a picture instead of a text"),
            Argument("text", "", "TEXT", "what to say"),
        ),
    ),
    Verb(
        "audit",
        Audit,
        "check that no line of the audit log was changed or removed",
        (Argument("action", "", "verify", "what to do", kind="choice", required=True, choices=("verify",)),),
    ),
    Verb(
        "doctor",
        Doctor,
        "say what is wrong and what mends it",
        (
            Argument(
                "probe", "--probe", "", "start throw-away workers that try to break out, and show each try", kind="yes"
            ),
        ),
        json=True,
    ),
    Verb(
        "events",
        Events,
        "show what has happened, numbered",
        (
            Argument("follow", "--follow", "", "go on showing what happens until interrupted", kind="yes"),
            Argument("since", "--since", "SEQ", "only those with a higher number", kind="count"),
        ),
        json=True,
    ),
    Verb(
        "trace",
        Trace,
        "show one message's whole life, and where its time went",
        (
            Argument(
                "message_id",
                "",
                "MESSAGE_ID",
                "WeChat's id of it, with ACCOUNT/ before it where two had the same",
                required=True,
            ),
        ),
        json=True,
    ),
    Verb("metrics", Metrics, "print counters and gauges for Prometheus"),
    Verb("reload", Reload, "read bridge.toml and peers.toml again"),
    Verb("shutdown", Shutdown, "finish running turns and stop the supervisor"),
)
