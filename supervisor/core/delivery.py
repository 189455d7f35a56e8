"""When a peer's parts are sent: order, budget, reserve, pace, retry, park. One Outbox per peer.

In come parts, what the channel answered, and the fact that the peer wrote; out come the next bubble to send and what
the journal has to say of the parts. bubbles.py cuts the text; supervisor/delivery.py performs.

A peer may be sent `budget` messages for each one of theirs. Whatever does not fit stays parked, in order, until they
write again; so does everything after a refusal, since further attempts only prolong it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never

from protocol.ids import MessageId, SendKey
from supervisor.core.bubbles import Size, fits
from supervisor.core.states import PartKind, PartState

ATTEMPTS = 3  # only where the outcome is unknown, always with the same send key
BACKOFF_S = (1.0, 2.0)
AT_ONCE = 2  # messages after each inbound one that are not paced
THROTTLED_GAPS = 10.0
THROTTLED_S = 600.0
PARKED_PAUSE_S = 0.25  # so that a command's line, or a /stop, comes before the parked rest
COURTESY_MARGIN = 2  # beyond the reserve
LANDED_KEPT = 100  # sends remembered, among which those are looked for that crossed a message of the peer's
SUSPICIOUS_ROW = 3  # unconfirmed sends in a row that are a finding
FLEETING = frozenset({PartKind.COURTESY, PartKind.QUESTION, PartKind.PROACTIVE, PartKind.PROACTIVE_FILE})
FIRST = FLEETING - {PartKind.COURTESY} | {PartKind.COMMAND}
ANSWER = frozenset({PartKind.REPLY, PartKind.FILE})
FILES = frozenset({PartKind.FILE, PartKind.PROACTIVE_FILE})


@dataclass(frozen=True, slots=True)
class Rules:
    budget: int = 10  # messages per inbound message
    reserve: int = 2  # of them for the end of an answer, and for a dialog
    gap_s: float = 0.6  # 0 = as fast as the channel answers
    window_s: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Part:
    """turn: the journal row of the message it answers; None for a line that belongs to no turn."""

    key: SendKey
    kind: PartKind
    text: str
    turn: int | None


# --- events


@dataclass(frozen=True, slots=True)
class TurnOpened:
    turn: int


@dataclass(frozen=True, slots=True)
class Enqueued:
    """ends: the turn that these parts are the last of."""

    parts: tuple[Part, ...]
    ends: int | None = None


@dataclass(frozen=True, slots=True)
class TurnStopped:
    """Its unsent reply is dropped."""

    turn: int


@dataclass(frozen=True, slots=True)
class ParkedUnwanted:
    """The peer asked to be spared what is parked; outcomes stay."""


@dataclass(frozen=True, slots=True)
class Lapsed:
    """Nobody fetched these for so long that the journal has given them up already."""

    keys: frozenset[SendKey]


@dataclass(frozen=True, slots=True)
class QuestionOver:
    """Nobody waits for an answer any more: what is unsent of the question is dropped."""


@dataclass(frozen=True, slots=True)
class PeerWrote:
    """The budget is full again, but for what was sent since they wrote.

    at          when we heard of it: from then on the reply window counts
    more_line   says, in the peer's language, that more is waiting
    written_at  monotonic seconds, as `at`; None: at `at`
    """

    at: float
    more_line: str
    written_at: float | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    message_id: MessageId | None


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """200 without an id: perhaps dropped by the server. Never sent again."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """-2, or any other code."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Network or server trouble: nobody knows whether it arrived."""

    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Unsent:
    """The part on its way met a token that is not taken any more: it was certainly not sent. SignedOut follows."""


@dataclass(frozen=True, slots=True)
class Unsendable:
    """There is nothing to send: the part on its way was a file that could not be uploaded. Nothing reached the peer."""


@dataclass(frozen=True, slots=True)
class SignedOut:
    """The account's token is not taken any more. A part on its way still gets its answer."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    pass


@dataclass(frozen=True, slots=True)
class LoggedInAnew:
    """The account has a new bot, to which this peer has not written yet: what is sent before they do is swallowed."""


@dataclass(frozen=True, slots=True)
class BackOnline:
    """The network, which had swallowed all attempts, answers again."""


@dataclass(frozen=True, slots=True)
class Woke:
    pass


OutboxEvent = (
    TurnOpened
    | Enqueued
    | TurnStopped
    | ParkedUnwanted
    | Lapsed
    | QuestionOver
    | PeerWrote
    | Accepted
    | Unconfirmed
    | Rejected
    | Unanswered
    | Unsent
    | Unsendable
    | SignedOut
    | SignedIn
    | LoggedInAnew
    | BackOnline
    | Woke
)


# --- effects


@dataclass(frozen=True, slots=True)
class Send:
    """Write down that it is being sent, then send it. spend: what the attempt takes from the budget, 0 or 1."""

    key: SendKey
    text: str
    spend: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Write down a part's state. A refusal spends all that is left: until the peer writes, nothing else may go."""

    key: SendKey
    state: PartState
    spend: int = 0
    message_id: MessageId | None = None


OutboxEffect = Send | Mark


@dataclass(slots=True)
class _Item:
    part: Part
    state: PartState  # as the journal has it: PENDING, SENDING or PARKED
    attempts: int = 0
    paid: bool = False  # counted in `spent` already
    retry_at: float | None = None
    unwanted: bool = False  # on its way when its turn was stopped

    @property
    def courtesy(self) -> bool:
        return self.part.kind is PartKind.COURTESY

    @property
    def expendable(self) -> bool:
        """Not to be tried again, whatever the channel answers."""
        return self.courtesy or self.unwanted

    @property
    def fleeting(self) -> bool:
        """Worth nothing once it cannot be sent now."""
        return self.part.kind in FLEETING


class Outbox:
    """Decides for one peer. Knows no channel, journal or clock; `now` is monotonic seconds."""

    def __init__(self, size: Size, rules: Rules) -> None:
        self.size = size
        self.rules = rules
        self.unconfirmed_in_a_row = 0
        self.throttled_until: float | None = None
        self._items: list[_Item] = []  # unsent, in order
        self._flying: _Item | None = None  # one of them
        self._turns: set[int] = set()  # may still bring text
        self._spent = 0
        self._heard_at: float | None = None
        self._more_line = ""
        self._sent_since_heard = 0
        self._landed_at: deque[float] = deque(maxlen=LANDED_KEPT)
        self._sent_at = 0.0
        self._rest_from = 0.0  # parked parts do not leave before
        self._held = False  # signed out
        self._closed = True  # as of the last step: the peer never wrote, or too long ago
        self._stalled = False  # three attempts without an answer
        self._story: deque[str] = deque(maxlen=24)

    def restore(
        self,
        parts: Iterable[tuple[Part, PartState, int]],
        *,
        spent: int,
        heard_at: float | None,
        more_line: str,
        now: float,
        landed_at: Iterable[float] = (),
    ) -> tuple[OutboxEffect, ...]:
        """Take over the journal's open parts, given as (part, state, attempts), oldest first.

        landed_at   when the last ones that are open no more were sent: a message written before that may yet come

        One that was on its way is tried again first, with its own key: if the server has it, it is not shown twice.
        Courtesy lines speak of a wait that is over, and those who asked are gone: they are dropped.
        """
        self._spent, self._heard_at, self._more_line = spent, heard_at, more_line
        self._sent_since_heard, self._sent_at = spent, now
        self._landed_at.extend(landed_at)
        stale: list[OutboxEffect] = []
        for part, state, attempts in parts:
            if part.kind in FLEETING:
                stale.append(Mark(part.key, PartState.DROPPED))
                continue
            item = _Item(part, state)
            if state is PartState.SENDING:
                item.paid, item.retry_at, item.attempts = True, now, min(attempts, ATTEMPTS - 1)
            self._items.append(item)
        self._items.sort(key=lambda item: item.retry_at is None)
        return (*stale, *self.step(Woke(), now))

    # -- what others want to know

    @property
    def left(self) -> int:
        """Messages that may still be sent before the peer writes."""
        return max(0, self.rules.budget - self._spent)

    @property
    def parked(self) -> int:
        return sum(item.state is PartState.PARKED for item in self._items)

    @property
    def parked_rest(self) -> int:
        """Those of them that the peer may do without: how a message of theirs ended is told in any case."""
        return sum(self._spared(item) for item in self._items)

    @property
    def suspicious(self) -> bool:
        return self.unconfirmed_in_a_row >= SUSPICIOUS_ROW

    def room(self, now: float) -> int:
        """How many bubbles more could be sent before the peer writes, behind what is queued already."""
        if self._stalled or self._is_closed(now):
            return 0
        return max(0, self.left - sum(not item.paid and not item.courtesy for item in self._items))

    def room_to_stream(self, now: float) -> int:
        """The same, for text that need not go before its turn ends: the reserve is not touched."""
        return max(0, self.room(now) - self.rules.reserve)

    def at_rest(self) -> bool:
        """Nothing is on its way, and nothing will be before something happens."""
        return self._flying is None and self.wake_at() is None

    def wake_at(self) -> float | None:
        if self._flying is not None or self._held or self._stalled or self._closed:
            return None
        item = self._first()
        return None if item is None or not self._affordable(item) else self._due(item)

    # -- the steps

    def step(self, event: OutboxEvent, now: float) -> tuple[OutboxEffect, ...]:
        self._story.append(f"{now:.3f} {type(event).__name__}")
        effects: list[OutboxEffect] = []
        match event:
            case TurnOpened(turn):
                self._turns.add(turn)
            case Enqueued(parts, ends):
                if ends is not None:
                    self._turns.discard(ends)
                self._items += [_Item(part, PartState.PENDING) for part in parts]
            case TurnStopped(turn):
                self._turns.discard(turn)
                if self._flying is not None and self._flying.part.turn == turn:
                    self._flying.unwanted = self._flying.part.kind in ANSWER
                self._drop(effects, lambda item: item.part.turn == turn and item.part.kind in ANSWER)
            case ParkedUnwanted():
                self._drop(effects, self._spared)
            case Lapsed(keys):
                self._items = [one for one in self._items if one is self._flying or one.part.key not in keys]
            case QuestionOver():
                if self._flying is not None and self._flying.part.kind is PartKind.QUESTION:
                    self._flying.unwanted = True
                self._drop(effects, lambda item: item.part.kind is PartKind.QUESTION)
            case PeerWrote(at, more_line, written_at):
                self._wrote(at, more_line, at if written_at is None else written_at, now)
            case Accepted(message_id):
                self.unconfirmed_in_a_row = 0
                self._landed_at.append(now)
                effects.append(Mark(self._landed().part.key, PartState.ACCEPTED, message_id=message_id))
            case Unconfirmed():
                self.unconfirmed_in_a_row += 1
                self._landed_at.append(now)
                effects.append(Mark(self._landed().part.key, PartState.UNCONFIRMED))
            case Rejected():
                self._rejected(effects, now)
            case Unanswered(retry_after_s):
                self._unanswered(effects, retry_after_s, now)
            case Unsent():
                self._held = True
                self._unsent(effects)
            case Unsendable():
                effects.append(Mark(self._landed().part.key, PartState.DROPPED))
            case SignedOut():
                self._held = True
            case SignedIn():
                self._held = self._stalled = False
            case LoggedInAnew():
                self._heard_at = None
            case BackOnline():
                self._stalled = False
            case Woke():
                pass
            case _:
                assert_never(event)
        self._advance(effects, now)
        self._story.extend(f"{now:.3f}   {type(effect).__name__}" for effect in effects)
        return tuple(effects)

    def _advance(self, effects: list[OutboxEffect], now: float) -> None:
        """Send the next part if one may go now; park what must wait for the peer."""
        self._closed = self._is_closed(now)
        if self._closed or self._stalled or self.left == 0:
            self._park(effects)
        if self._closed or self._stalled or self._held:
            self._drop(effects, lambda item: item.fleeting)
            return
        while self._flying is None and (item := self._first()) is not None and self._affordable(item):
            if item.courtesy and self._needed_elsewhere(item):
                self._items.remove(item)
                effects.append(Mark(item.part.key, PartState.DROPPED))
            elif now < self._due(item):
                return
            else:
                self._send(item, effects, now)

    def _send(self, item: _Item, effects: list[OutboxEffect], now: float) -> None:
        spend = 0 if item.paid else 1
        self._spent += spend
        item.paid, item.retry_at, item.state = True, None, PartState.SENDING
        item.attempts += 1
        self._flying = item
        self._sent_since_heard += spend
        self._sent_at = now
        effects.append(Send(item.part.key, self._worded(item), spend))
        if self.left == 0:
            self._park(effects)

    def _worded(self, item: _Item) -> str:
        """The last message before the peer must write says so, when anything is left to come."""
        text = item.part.text
        if self.left > 0 or item.part.kind not in (PartKind.REPLY, PartKind.OUTCOME):
            return text
        if not self._turns and all(other is item or other.courtesy for other in self._items):
            return text
        worded = f"{text}\n\n{self._more_line}"
        return worded if self._more_line and fits(worded, self.size) else text

    # -- who is next

    def _first(self) -> _Item | None:
        """A part whose outcome is unknown goes first. Commands' lines and questions overtake what does not belong to them."""
        if not self._items or self._items[0].retry_at is not None:
            return self._items[0] if self._items else None
        ahead: set[int] = set()  # turns whose fresh text stands before the line in question
        for item in self._items:
            if item.part.kind in FIRST and item.part.turn not in ahead:
                return item
            if item.part.turn is not None and item.state is not PartState.PARKED:
                ahead.add(item.part.turn)
        return self._items[0]

    def _affordable(self, item: _Item) -> bool:
        return item.paid or self.left > 0

    def _due(self, item: _Item) -> float:
        if item.retry_at is not None:
            return item.retry_at
        due = 0.0
        if self._sent_since_heard >= AT_ONCE and self.rules.gap_s > 0:
            due = self._sent_at + self.rules.gap_s
            if self.throttled_until is not None and self._sent_at < self.throttled_until:
                due = self._sent_at + self.rules.gap_s * THROTTLED_GAPS
        if item.state is PartState.PARKED:
            due = max(due, self._rest_from)
        return due

    def _needed_elsewhere(self, item: _Item) -> bool:
        queued = sum(not other.paid and not other.courtesy for other in self._items)
        return self.left - queued <= self.rules.reserve + COURTESY_MARGIN

    @staticmethod
    def _spared(item: _Item) -> bool:
        return item.state is PartState.PARKED and item.part.kind is not PartKind.OUTCOME

    def _is_closed(self, now: float) -> bool:
        return self._heard_at is None or now >= self._heard_at + self.rules.window_s

    # -- what becomes of parts

    def _wrote(self, at: float, more_line: str, written_at: float, now: float) -> None:
        self._heard_at, self._more_line = at, more_line
        # WeChat counts from the moment they wrote, and the message took its time to us, or waited while we were down. One
        # on its way may reach the server on either side of it: it counts.
        self._spent = sum(landed > written_at for landed in self._landed_at) + (self._flying is not None)
        self._sent_since_heard = self._spent
        self._stalled = False
        self._rest_from = now + PARKED_PAUSE_S
        for item in self._items:
            if item is not self._flying:
                item.paid, item.attempts = False, 0

    def _landed(self) -> _Item:
        item = self._in_flight()
        self._items.remove(item)
        self._flying = None
        return item

    def _in_flight(self) -> _Item:
        if self._flying is None:
            raise RuntimeError("an answer to nothing that was sent\n" + "\n".join(self._story))
        return self._flying

    def _rejected(self, effects: list[OutboxEffect], now: float) -> None:
        item = self._in_flight()
        if self.left > 0:
            self.throttled_until = now + THROTTLED_S
        rest, self._spent = self.left, self.rules.budget
        if item.expendable or item.fleeting:
            effects.append(Mark(self._landed().part.key, PartState.DROPPED, spend=rest))
            return
        self._flying, item.paid, item.attempts = None, False, 0
        item.state = PartState.PARKED
        effects.append(Mark(item.part.key, PartState.PARKED, spend=rest))

    def _unanswered(self, effects: list[OutboxEffect], retry_after_s: float, now: float) -> None:
        item = self._in_flight()
        if item.expendable:
            self._landed_at.append(now)  # perhaps
            effects.append(Mark(self._landed().part.key, PartState.DROPPED))
            return
        self._flying = None
        self._items.sort(key=lambda other: other is not item)
        if item.attempts >= ATTEMPTS:
            # It may have arrived; with its own key it can be sent again later without being shown twice.
            item.attempts = 0
            self._stalled = True
        else:
            item.retry_at = now + max(retry_after_s, BACKOFF_S[item.attempts - 1])

    def _unsent(self, effects: list[OutboxEffect]) -> None:
        item = self._in_flight()
        if item.expendable or item.fleeting:
            effects.append(Mark(self._landed().part.key, PartState.DROPPED))
            return
        self._flying = None
        item.state, item.attempts = PartState.PENDING, 0
        effects.append(Mark(item.part.key, PartState.PENDING))

    def _park(self, effects: list[OutboxEffect]) -> None:
        """Nothing new goes before the peer writes: fleeting lines will be stale by then, the rest waits on disk."""

        def waits(item: _Item) -> bool:
            # What has been paid for may be tried again without budget, but not through a closed window.
            return not item.paid or self._closed or self._stalled

        self._drop(effects, lambda item: item.fleeting and waits(item))
        for item in self._items:
            if waits(item) and item is not self._flying and item.state is not PartState.PARKED:
                item.state, item.retry_at = PartState.PARKED, None
                effects.append(Mark(item.part.key, PartState.PARKED))

    def _drop(self, effects: list[OutboxEffect], unwanted: Callable[[_Item], bool]) -> None:
        gone = [item for item in self._items if item is not self._flying and unwanted(item)]
        self._items = [item for item in self._items if item not in gone]
        effects.extend(Mark(item.part.key, PartState.DROPPED) for item in gone)
