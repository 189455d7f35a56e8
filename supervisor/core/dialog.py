"""Asking a peer, and whether what comes back is an answer. One Dialogs for all peers.

In come a worker's questions, what became of their sending, the peer's words, orders to withdraw and the clock; out go
the question to put, the answer for the worker, lines for the peer, and whether the turn waits. One dialog of a peer's is
open at a time, others wait behind it; each is resolved exactly once; all end with their turn. answers.py reads the
words, dialogs.py performs.

          first in line        Sent                  Replied, Withdrawn, AgentWithdrew, TurnOver, Woke
WAITING ───────────────► ASKED ─────────► OPEN ──────────────────────────────────────────────────────► resolved
   └──────────────────────┴── NotSent, and all but Replied ─────────────────────────────────────────────────▲
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from protocol.ids import DialogId, Generation, PeerKey
from protocol.to_worker import DialogAnswer, Dismissed
from supervisor.core.answers import Answered, Declined, Question, Unclear, Why, read

ASKED_MOST = 100  # questions of one turn; each leaves a row, and a hostile worker asks without end
QUEUE_MOST = 8  # of one peer's questions behind the open one; an agent that asks more is declined
OLDER_S = 2.0  # a reply may seem so much older than the question it answers: clocks, and the way here (settled.md 23)


# --- events


@dataclass(frozen=True, slots=True)
class Ref:
    """Which worker waits, in which turn, for what."""

    who: PeerKey
    generation: Generation
    turn: int
    dialog_id: DialogId


@dataclass(frozen=True, slots=True)
class Asked:
    """question   None: the peer cannot or may not be asked
    limit_s    how long the peer has, from when the question was sent
    agent_s    how long the agent waits, from now; None = as long as it takes
    """

    ref: Ref
    question: Question | None
    language: str
    limit_s: float
    agent_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """The channel has taken the question. at: Unix seconds"""

    who: PeerKey
    number: int
    at: float


@dataclass(frozen=True, slots=True)
class NotSent:
    who: PeerKey
    number: int


@dataclass(frozen=True, slots=True)
class Replied:
    """The peer wrote words that are no command. Unix seconds, written_at on our clock."""

    who: PeerKey
    text: str
    arrived_at: float
    written_at: float


class Extent(StrEnum):
    OPEN = "open"  # the one that is being asked
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """By the operator, by a pause, or because the bridge goes away: the turn goes on as if the peer had cancelled."""

    who: PeerKey
    extent: Extent


@dataclass(frozen=True, slots=True)
class AgentWithdrew:
    """The agent no longer waits."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class TurnOver:
    """The turn has ended, was told to, or lost its worker: nobody waits for answers any more."""

    who: PeerKey
    turn: int


@dataclass(frozen=True, slots=True)
class Woke:
    pass


DialogEvent = Asked | Sent | NotSent | Replied | Withdrawn | AgentWithdrew | TurnOver | Woke


# --- effects


class Outcome(StrEnum):
    ANSWERED = "answered"
    DECLINED = "declined"  # the peer said cancel
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    UNSENT = "unsent"
    NOT_ASKED = "not_asked"
    GONE = "gone"  # the agent gave up
    TURN_OVER = "turn_over"


@dataclass(frozen=True, slots=True)
class Put:
    """Send the question, and say with this number what became of it."""

    ref: Ref
    number: int
    question: Question
    language: str


@dataclass(frozen=True, slots=True)
class Unsay:
    """What is not sent of that question must not be any more."""

    who: PeerKey
    number: int


@dataclass(frozen=True, slots=True)
class Resolve:
    """answer: for the worker; None = it does not wait. rule: to be kept"""

    ref: Ref
    outcome: Outcome
    answer: DialogAnswer | None
    rule: str = ""


class Say(StrEnum):
    REMINDER = "reminder"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Tell:
    """left_s: what is left of the time, for a reminder"""

    who: PeerKey
    say: Say
    question: Question
    language: str
    left_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The reply was no answer: say why, and what would be one."""

    who: PeerKey
    number: int
    why: Why
    question: Question
    language: str


@dataclass(frozen=True, slots=True)
class Take:
    """The peer's words were for the dialog."""


@dataclass(frozen=True, slots=True)
class Pass:
    """They were not: a message like any other."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The turn waits for its peer from now on."""

    who: PeerKey


@dataclass(frozen=True, slots=True)
class GoesOn:
    who: PeerKey


DialogEffect = Put | Unsay | Resolve | Tell | AskAgain | Take | Pass | Waits | GoesOn


# --- state


@dataclass(slots=True)
class _Dialog:
    ref: Ref
    number: int
    question: Question
    language: str
    limit_s: float
    asked: float
    expires: float
    agent_until: float  # inf: as long as it takes
    sent_at: float | None = None  # Unix seconds; None = not sent yet
    remind: float = math.inf
    picked_other: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What status tells of an open dialog. Monotonic seconds. sent: the peer can see it"""

    question: Question
    asked: float
    expires: float
    sent: bool


class Dialogs:
    """Knows no channel, worker or clock; `now` is monotonic seconds."""

    def __init__(self) -> None:
        self._lines: dict[PeerKey, deque[_Dialog]] = {}  # never empty; the first is the one that is being asked
        self._numbers = 0
        self._counted_for: dict[PeerKey, tuple[int, int]] = {}  # the last turn that asked, and how often

    def view(self, who: PeerKey) -> View | None:
        line = self._lines.get(who)
        if line is None:
            return None
        first = line[0]
        return View(first.question, first.asked, first.expires, first.sent_at is not None)

    def open(self) -> tuple[PeerKey, ...]:
        """Whose turns wait, the longest first."""
        return tuple(self._lines)

    def puts(self, who: PeerKey, number: int) -> bool:
        """Is this the question that is being put to that peer?"""
        line = self._lines.get(who)
        return line is not None and line[0].number == number

    def wake_at(self) -> float | None:
        times = [
            at
            for line in self._lines.values()
            for dialog in line
            for at in ((dialog.expires, dialog.remind) if dialog is line[0] else (dialog.agent_until,))
        ]
        at = min(times, default=math.inf)
        return None if at == math.inf else at

    def step(self, event: DialogEvent, now: float) -> tuple[DialogEffect, ...]:
        match event:
            case Asked():
                return tuple(self._asked(event, now))
            case Sent(who, number, at):
                if self.puts(who, number):
                    self._sent(self._lines[who][0], at, now)
                return ()
            case NotSent(who, number):
                if not self.puts(who, number):
                    return ()
                return tuple(self._resolve(self._lines[who][0], Outcome.UNSENT, now))
            case Replied():
                return tuple(self._replied(event, now))
            case Withdrawn(who, extent):
                return tuple(self._withdrawn(who, extent, now))
            case AgentWithdrew(ref):
                return tuple(self._agent_withdrew(ref, now))
            case TurnOver(who, turn):
                return tuple(self._turn_over(who, turn, now))
            case Woke():
                return tuple(self._woke(now))
        assert_never(event)

    # -- events

    def _asked(self, event: Asked, now: float) -> Iterator[DialogEffect]:
        who = event.ref.who
        line = self._lines.get(who)
        if any(dialog.ref == event.ref for dialog in line or ()):
            return  # a second one by the same name gets the first one's answer
        turn, count = self._counted_for.get(who, (event.ref.turn, 0))
        count = count if turn == event.ref.turn else 0
        if event.question is None or len(line or ()) > QUEUE_MOST or count >= ASKED_MOST:
            yield Resolve(event.ref, Outcome.NOT_ASKED, Dismissed())
            return
        self._counted_for[who] = (event.ref.turn, count + 1)
        self._numbers += 1
        agent_s = event.agent_s if event.agent_s is not None and event.agent_s > 0 else math.inf
        dialog = _Dialog(
            ref=event.ref,
            number=self._numbers,
            question=event.question,
            language=event.language,
            limit_s=event.limit_s,
            asked=now,
            expires=math.inf,
            agent_until=now + agent_s,
        )
        if line is None:
            self._lines[who] = deque([dialog])
            yield Waits(who)
            yield self._put(dialog, now)
        else:
            line.append(dialog)

    def _put(self, dialog: _Dialog, now: float) -> Put:
        # The sending has as much time as the answering; a refusal or an outage tells sooner.
        dialog.expires = min(now + dialog.limit_s, dialog.agent_until)
        return Put(dialog.ref, dialog.number, dialog.question, dialog.language)

    def _sent(self, dialog: _Dialog, at: float, now: float) -> None:
        if dialog.sent_at is None:
            dialog.sent_at = at
            dialog.expires = min(now + dialog.limit_s, dialog.agent_until)
            dialog.remind = now + (dialog.expires - now) / 2

    def _replied(self, event: Replied, now: float) -> Iterator[DialogEffect]:
        line = self._lines.get(event.who)
        dialog = line[0] if line is not None else None
        if dialog is None or dialog.sent_at is None:
            yield Pass()
            return
        if event.arrived_at < dialog.sent_at or event.written_at < dialog.sent_at - OLDER_S:
            yield Pass()  # written before the question could be read, whatever it says
            return
        reading = read(dialog.question, event.text, picked_other=dialog.picked_other)
        yield Take()
        match reading:
            case Answered(answer, rule):
                yield from self._resolve(dialog, Outcome.ANSWERED, now, answer, rule)
            case Declined():
                yield from self._resolve(dialog, Outcome.DECLINED, now)
            case Unclear(why):
                dialog.picked_other = why is Why.TYPE_IT
                yield AskAgain(event.who, dialog.number, why, dialog.question, dialog.language)
            case _:
                assert_never(reading)

    def _withdrawn(self, who: PeerKey, extent: Extent, now: float) -> Iterator[DialogEffect]:
        line = self._lines.get(who)
        if line is None:
            return
        if extent is Extent.ALL:
            while len(line) > 1:
                yield Resolve(line.pop().ref, Outcome.WITHDRAWN, Dismissed())
        first = line[0]
        if first.sent_at is not None:
            yield Tell(who, Say.WITHDRAWN, first.question, first.language)
        yield from self._resolve(first, Outcome.WITHDRAWN, now)

    def _agent_withdrew(self, ref: Ref, now: float) -> Iterator[DialogEffect]:
        line = self._lines.get(ref.who)
        dialog = next((d for d in line if d.ref == ref), None) if line is not None else None
        if line is None or dialog is None:
            return
        if dialog.sent_at is not None:
            yield Tell(ref.who, Say.WITHDRAWN, dialog.question, dialog.language)
        yield from self._resolve(dialog, Outcome.GONE, now)

    def _turn_over(self, who: PeerKey, turn: int, now: float) -> Iterator[DialogEffect]:
        line = self._lines.get(who)
        if line is None or line[0].ref.turn != turn:
            return
        while len(line) > 1:
            yield Resolve(line.pop().ref, Outcome.TURN_OVER, None)
        yield from self._resolve(line[0], Outcome.TURN_OVER, now)

    def _woke(self, now: float) -> Iterator[DialogEffect]:
        for line in tuple(self._lines.values()):
            # Behind the first ones: an agent that gave up on a question nobody has seen.
            for dialog in [d for d in line if d is not line[0] and now >= d.agent_until]:
                yield from self._resolve(dialog, Outcome.EXPIRED, now)
            first = line[0]
            if now >= first.expires and first.sent_at is None:
                yield from self._resolve(first, Outcome.UNSENT, now)
            elif now >= first.expires:
                yield Tell(first.ref.who, Say.EXPIRED, first.question, first.language)
                yield from self._resolve(first, Outcome.EXPIRED, now)
            elif now >= first.remind:
                first.remind = math.inf
                yield Tell(first.ref.who, Say.REMINDER, first.question, first.language, first.expires - now)

    # -- the one way out

    def _resolve(
        self, dialog: _Dialog, outcome: Outcome, now: float, answer: DialogAnswer | None = None, rule: str = ""
    ) -> Iterator[DialogEffect]:
        who = dialog.ref.who
        line = self._lines[who]
        was_first = line[0] is dialog
        line.remove(dialog)
        waits = outcome not in (Outcome.GONE, Outcome.TURN_OVER)
        yield Resolve(dialog.ref, outcome, (answer or Dismissed()) if waits else None, rule)
        if not was_first:
            return
        if dialog.sent_at is None:
            yield Unsay(who, dialog.number)
        if line:
            yield self._put(line[0], now)
        else:
            del self._lines[who]
            yield GoesOn(who)
