"""QR login of the simulated service: one ticket's life from `wait` to `confirmed`, as polls see it. No I/O, no clock.

In: what a person's phone does with a QR (`act`), and each status poll (`poll`). Out: a JSON status, `Confirm` for the
world to turn into credentials, or None: nothing changed, hold the poll.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Json = dict[str, Any]


class Status(Enum):
    """A ticket's states; the values are the wire's own words."""

    WAIT = "wait"
    SCANED = "scaned"  # the service spells it so
    REDIRECT = "scaned_but_redirect"
    NEED_VERIFYCODE = "need_verifycode"
    VERIFY_CODE_BLOCKED = "verify_code_blocked"
    CONFIRMED = "confirmed"
    BINDED_REDIRECT = "binded_redirect"
    EXPIRED = "expired"


class Action(Enum):
    """What a phone can do with a QR, and what its service can make of it."""

    SCAN = "scan"  # looked at, not yet confirmed
    CONFIRM = "confirm"
    VERIFY = "verify"  # confirmed, once the right number was typed at the other side
    REDIRECT = "redirect"  # confirmed, but the poll has to go on at another host
    ALREADY_BOUND = "already_bound"
    EXPIRE = "expire"


_PENDING = frozenset({Status.WAIT, Status.SCANED, Status.NEED_VERIFYCODE, Status.REDIRECT})


@dataclass(frozen=True, slots=True)
class Confirm:
    """This poll is to be answered with fresh credentials for person."""

    person: str


@dataclass(frozen=True, slots=True)
class Scripted:
    """This poll gets an HTTP status instead of an answer."""

    http_status: int


@dataclass(slots=True)
class Ticket:
    """One QR. told: the status its poller heard last; confirm_next: scaned turns into confirmed by itself."""

    id: str
    url: str
    created_at: float
    known_bots: tuple[str, ...]  # bots whose tokens the client already had
    status: Status = Status.WAIT
    told: Status = Status.WAIT
    person: str = ""
    verify_code: str = ""
    wrong_codes: int = 0
    redirect_host: str = ""
    confirm_next: bool = False


@dataclass(slots=True)
class Tickets:
    """Every QR ever made, and the script (if any) that answers status polls in place of phones."""

    life_s: float
    verify_tries: int
    by_id: dict[str, Ticket] = field(default_factory=dict)
    script: deque[str] = field(default_factory=deque)
    script_person: str = ""

    def pending(self, now: float) -> list[Ticket]:
        return [t for t in self.by_id.values() if self._fresh(t, now)]

    def act(self, ticket: Ticket, action: Action, person: str, *, verify_code: str, redirect_host: str) -> None:
        ticket.person = person
        match action:
            case Action.SCAN:
                ticket.status = Status.SCANED
            case Action.CONFIRM:
                ticket.status = Status.CONFIRMED
            case Action.VERIFY:
                ticket.status, ticket.verify_code, ticket.confirm_next = Status.NEED_VERIFYCODE, verify_code, True
            case Action.REDIRECT:
                ticket.status, ticket.redirect_host = Status.REDIRECT, redirect_host
            case Action.ALREADY_BOUND:
                ticket.status = Status.BINDED_REDIRECT
            case Action.EXPIRE:
                ticket.status = Status.EXPIRED

    def poll(self, ticket_id: str, verify_code: str, host: str, now: float) -> Json | Confirm | Scripted | None:
        """One look at a ticket; None when there is nothing new for its poller."""
        if self.script:
            return self._next_of_script()
        ticket = self.by_id.get(ticket_id)
        if ticket is None or (ticket.status in _PENDING and not self._fresh(ticket, now)):
            return {"status": Status.EXPIRED.value}
        if ticket.status is Status.NEED_VERIFYCODE and verify_code:
            return self._try_code(ticket, verify_code)
        if ticket.status is Status.REDIRECT:
            if host != ticket.redirect_host:
                return {"status": Status.REDIRECT.value, "redirect_host": ticket.redirect_host}
            ticket.status = Status.CONFIRMED
        if ticket.status is Status.SCANED and ticket.told is Status.SCANED and ticket.confirm_next:
            ticket.status = Status.CONFIRMED
        if ticket.status is Status.CONFIRMED:
            ticket.status = Status.EXPIRED  # credentials are told once
            return Confirm(ticket.person)
        if ticket.status is ticket.told:
            return None
        return self.tell(ticket)

    def tell(self, ticket: Ticket) -> Json:
        """The ticket's status as it stands; what a poll gets when its hold ends too."""
        ticket.told = ticket.status
        return {"status": ticket.status.value}

    def _try_code(self, ticket: Ticket, code: str) -> Json:
        if code == ticket.verify_code:
            ticket.status = Status.SCANED
        else:
            ticket.wrong_codes += 1
            if ticket.wrong_codes >= self.verify_tries:
                ticket.status = Status.VERIFY_CODE_BLOCKED
        return self.tell(ticket)

    def _next_of_script(self) -> Json | Confirm | Scripted:
        status, _, detail = self.script.popleft().partition(":")
        if status == "http":
            return Scripted(int(detail))
        if status == Status.CONFIRMED.value:
            return Confirm(self.script_person)
        if status == Status.REDIRECT.value:
            return {"status": status, "redirect_host": detail}
        return {"status": status}

    def _fresh(self, ticket: Ticket, now: float) -> bool:
        return ticket.status in _PENDING and now - ticket.created_at < self.life_s
