"""Decides one login by QR code: which code to show, what to ask, when to give up.

In: what the chat network answered, as events, and the time. Out: effects, of which the last one brings the next event.
It holds no credentials: whoever reads the answers keeps them. supervisor/channels/wechat/login.py performs it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from protocol.errors import BridgeError


@dataclass(frozen=True, slots=True)
class LoginLimits:
    """source: what the official client does (ilink-protocol.md 2.3)"""

    total_s: float = 480.0
    status_s: float = 35.0
    pause_s: float = 1.0
    codes: int = 3
    attempts: int = 3  # to get one code, in a row


class Line(Enum):
    """What the person who logs in is told on the way."""

    SCANNED = "scanned"
    EXPIRED = "expired"  # a new code follows
    BLOCKED = "blocked"  # too many wrong numbers, a new code follows
    TROUBLE = "trouble"


class Outcome(Enum):
    CONFIRMED = "confirmed"
    ALREADY_BOUND = "already bound"
    NOT_CONFIRMED = "not confirmed"


# --- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    pass


@dataclass(frozen=True, slots=True)
class QrMade:
    """ticket: what its status is asked by. url: what the picture encodes."""

    ticket: str
    url: str


@dataclass(frozen=True, slots=True)
class QrFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing happened yet. trouble: why nothing could be learned, empty when all is well."""

    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Scanned:
    pass


@dataclass(frozen=True, slots=True)
class Redirected:
    """Scanned; from now on this server knows more. base_url: found trustworthy."""

    base_url: str


@dataclass(frozen=True, slots=True)
class Untrusted:
    """A server named a host that the token must not go to."""

    host: str


@dataclass(frozen=True, slots=True)
class CodeNeeded:
    """The phone shows a number. While one is pending: it was wrong."""


@dataclass(frozen=True, slots=True)
class CodeBlocked:
    pass


@dataclass(frozen=True, slots=True)
class CodeGiven:
    code: str


@dataclass(frozen=True, slots=True)
class QrExpired:
    pass


@dataclass(frozen=True, slots=True)
class Bound:
    """This installation is signed in already."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """missing: the names of what a confirmation needs and this one lacks."""

    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Woke:
    pass


@dataclass(frozen=True, slots=True)
class TimedOut:
    """In place of CodeGiven: nobody typed it in time."""


LoginEvent = (
    Started
    | QrMade
    | QrFailed
    | Waiting
    | Scanned
    | Redirected
    | Untrusted
    | CodeNeeded
    | CodeBlocked
    | CodeGiven
    | QrExpired
    | Bound
    | Confirmed
    | Woke
    | TimedOut
)

# --- effects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateQr:
    """→ QrMade or QrFailed"""


@dataclass(frozen=True, slots=True)
class ShowQr:
    url: str
    number: int
    of: int


@dataclass(frozen=True, slots=True)
class AskStatus:
    """→ any event from Waiting to Confirmed. base_url None: the usual server. within_s: then it is Waiting."""

    ticket: str
    code: str
    base_url: str | None
    within_s: float


@dataclass(frozen=True, slots=True)
class AskCode:
    """→ CodeGiven or TimedOut. again: the last one was wrong"""

    again: bool
    within_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """→ Woke"""

    until: float


@dataclass(frozen=True, slots=True)
class Tell:
    line: Line
    detail: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The last effect. reason: one sentence or two for a person, with NOT_CONFIRMED."""

    outcome: Outcome
    reason: str = ""


LoginEffect = CreateQr | ShowQr | AskStatus | AskCode | Wait | Tell | End


class Login:
    def __init__(self, limits: LoginLimits | None = None) -> None:
        self._limits = limits or LoginLimits()
        self._deadline = 0.0
        self._codes = 0  # QR codes shown
        self._attempts = 0  # failures to get one, in a row
        self._ticket = ""
        self._scanned = False
        self._code = ""  # the number typed, until it is known to be right or of no use
        self._base_url: str | None = None
        self._trouble = ""
        self._over = False

    def step(self, event: LoginEvent, now: float) -> tuple[LoginEffect, ...]:
        """The effects in their order. Only the last one brings an event; after End there is none."""
        if self._over:
            raise BridgeError(f"login: {type(event).__name__} after the end")
        if isinstance(event, Started):
            self._deadline = now + self._limits.total_s
        effects = self._decide(event, now)
        if now >= self._deadline and not isinstance(effects[-1], End):
            minutes = self._limits.total_s / 60
            effects = self._fail(f"Nobody confirmed on the phone within {minutes:g} minutes.{self._told_trouble()}")
        self._over = isinstance(effects[-1], End)
        return effects

    def _decide(self, event: LoginEvent, now: float) -> tuple[LoginEffect, ...]:
        match event:
            case Started():
                return (CreateQr(),)
            case QrMade(ticket, url):
                return self._show(ticket, url, now)
            case QrFailed(reason):
                self._attempts += 1
                if self._attempts >= self._limits.attempts:
                    return self._fail(f"WeChat gave no QR code: {reason}.")
                return (self._pause(now),)
            case Waiting(trouble):
                return self._waiting(trouble, now)
            case Scanned():
                self._code = ""  # a pending number is accepted thereby
                return (*self._note_scan(), self._pause(now))
            case Redirected(base_url):
                self._base_url = base_url
                return (*self._note_scan(), self._pause(now))
            case Untrusted(host):
                return self._fail(
                    f"WeChat wants to continue on {host}, which is none of the trusted_hosts in [wechat]; the token was not sent there."
                )
            case CodeNeeded():
                return (AskCode(again=bool(self._code), within_s=self._left_s(now)),)
            case CodeGiven(code):
                self._code = code
                return (self._ask(now),)
            case TimedOut():
                return self._fail("The number that the phone shows was not entered in time.")
            case CodeBlocked():
                return self._another(Line.BLOCKED)
            case QrExpired():
                if self._scanned:
                    # A new code would make the one that is being confirmed worthless (B-085).
                    return self._fail("The code was scanned, but not confirmed on the phone before it ran out.")
                return self._another(Line.EXPIRED)
            case Bound():
                return (End(Outcome.ALREADY_BOUND),)
            case Confirmed(missing):
                if missing:
                    return self._fail(f"WeChat confirmed, but its answer lacks {', '.join(missing)}.")
                return (End(Outcome.CONFIRMED),)
            case Woke():
                return (self._ask(now),) if self._ticket else (CreateQr(),)
            case unknown:
                assert_never(unknown)

    def _show(self, ticket: str, url: str, now: float) -> tuple[LoginEffect, ...]:
        self._ticket, self._scanned, self._code, self._base_url = ticket, False, "", None
        self._attempts = 0
        self._codes += 1
        shown = ShowQr(url, self._codes, self._limits.codes)
        return (shown, self._ask(now) if self._codes == 1 else self._pause(now))

    def _another(self, line: Line) -> tuple[LoginEffect, ...]:
        self._ticket = ""
        if self._codes >= self._limits.codes:
            return self._fail(
                f"The phone never confirmed: {self._codes} QR codes ran out. Check that WeChat on the phone is online and up to "
                f"date, that it showed a button to confirm, and log in again.{self._told_trouble()}"
            )
        return (Tell(line), CreateQr())

    def _waiting(self, trouble: str, now: float) -> tuple[LoginEffect, ...]:
        fresh = bool(trouble) and not self._trouble
        self._trouble = trouble
        told = (Tell(Line.TROUBLE, trouble),) if fresh else ()
        return (*told, self._pause(now))

    def _note_scan(self) -> tuple[LoginEffect, ...]:
        told = () if self._scanned else (Tell(Line.SCANNED),)
        self._scanned = True
        return told

    def _ask(self, now: float) -> AskStatus:
        within_s = min(self._limits.status_s, self._left_s(now))
        return AskStatus(self._ticket, self._code, self._base_url, within_s)

    def _pause(self, now: float) -> Wait:
        return Wait(now + self._limits.pause_s)

    def _left_s(self, now: float) -> float:
        return max(0.0, self._deadline - now)

    def _fail(self, reason: str) -> tuple[LoginEffect, ...]:
        return (End(Outcome.NOT_CONFIRMED, reason),)

    def _told_trouble(self) -> str:
        return f" The last answer was missing: {self._trouble}." if self._trouble else ""
