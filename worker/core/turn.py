"""One turn of one agent, from its prompt to its end. Pure.

In come what the host tells and what the supervisor asks; out come messages to send and orders to the host.
worker/turn.py performs it. Whatever happens, exactly one TurnEnded is sent, last; words that come later are dropped.

           Asked                    AbortAsked                HostEnded, or the grace is long over
RUNNING ─────────► ASKING ──────────────────────► CANCELLING ─────────────────────────────────────► ENDED
   ▲  └──────────────┼── AbortAsked ───────────────────▲  HostEnded ends every other state as well
   └─ Answered, gone ┘
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from protocol.errors import FailureKind
from protocol.ids import DialogId, TurnId
from protocol.to_supervisor import (
    Asked,
    Boundary,
    DialogGone,
    FileOffered,
    FromWorker,
    PieceMade,
    Remarked,
    SendAsked,
    ToolUsed,
    TurnEnded,
    TurnOutcome,
    UsageSeen,
)
from protocol.to_worker import DialogAnswer, Dismissed
from worker.core.reply import Piece, Reply

REPORT_S = 0.5  # after the grace: the host ends its program then; the nanny acts a whole second after it
TOOL_CALLS = 500  # told per turn; what an agent starts beyond is run but no longer reported
REMARKS = 20  # likewise


class TurnState(StrEnum):
    RUNNING = "running"
    ASKING = "asking"
    CANCELLING = "cancelling"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Wrote:
    text: str


@dataclass(frozen=True, slots=True)
class Paused:
    """TOOL: a tool starts. PARAGRAPH: another message or block follows."""

    boundary: Boundary


@dataclass(frozen=True, slots=True)
class Told:
    """The host has something for the supervisor that needs no decision but whether it still counts."""

    message: ToolUsed | Asked | DialogGone | FileOffered | SendAsked | UsageSeen | Remarked


@dataclass(frozen=True, slots=True)
class Answered:
    dialog_id: DialogId
    answer: DialogAnswer


@dataclass(frozen=True, slots=True)
class AbortAsked:
    pass


@dataclass(frozen=True, slots=True)
class HostEnded:
    """kind is None unless the outcome is FAILED."""

    outcome: TurnOutcome
    kind: FailureKind | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Woke:
    pass


TurnEvent = Wrote | Paused | Told | Answered | AbortAsked | HostEnded | Woke


@dataclass(frozen=True, slots=True)
class Send:
    message: FromWorker


@dataclass(frozen=True, slots=True)
class AnswerHost:
    dialog_id: DialogId
    answer: DialogAnswer


@dataclass(frozen=True, slots=True)
class AbortHost:
    pass


@dataclass(frozen=True, slots=True)
class LeaveHost:
    """The host did not end the turn in time: stop listening to it and leave, the nanny sweeps up."""


TurnEffect = Send | AnswerHost | AbortHost | LeaveHost


class Turn:
    """Knows no clock, no host and no link. `now` is monotonic seconds."""

    def __init__(self, turn_id: TurnId, *, stop_grace_s: float) -> None:
        self.state = TurnState.RUNNING
        self._id = turn_id
        self._stop_grace_s = stop_grace_s
        self._reply = Reply()
        self._number = 0
        self._tools: dict[str, str] = {}  # call id → status last told
        self._remarks = 0
        self._usage: UsageSeen | None = None
        self._dialogs: set[DialogId] = set()
        self._give_up_at: float | None = None

    def wake_at(self) -> float | None:
        return self._give_up_at if self.state is TurnState.CANCELLING else None

    def step(self, event: TurnEvent, now: float) -> tuple[TurnEffect, ...]:
        if self.state is TurnState.ENDED:
            return ()
        match event:
            case Wrote() | Paused() if self.state is TurnState.CANCELLING:
                return ()
            case Wrote(text):
                return self._words(self._reply.write(text))
            case Paused(boundary):
                return self._words(self._reply.pause(boundary))
            case Told(message):
                return self._tell(message)
            case Answered(dialog_id, answer):
                return self._answer(dialog_id, answer)
            case AbortAsked():
                return self._abort(now)
            case HostEnded(outcome, kind, detail):
                return self._end(outcome, kind, detail)
            case Woke():
                if self._give_up_at is None or now < self._give_up_at:
                    return ()
                # Without what was held back: a piece may have been lost with the task that was sending it.
                return (LeaveHost(), *self._report(TurnOutcome.ABORTED, None, ""))
        assert_never(event)

    def _words(self, pieces: tuple[Piece, ...]) -> tuple[TurnEffect, ...]:
        sent = []
        for piece in pieces:
            sent.append(Send(PieceMade(self._id, self._number, piece.text, piece.boundary, piece.keep)))
            self._number += 1
        return tuple(sent)

    def _tell(
        self, message: ToolUsed | Asked | DialogGone | FileOffered | SendAsked | UsageSeen | Remarked
    ) -> tuple[TurnEffect, ...]:
        if isinstance(message, Asked) and self.state is TurnState.CANCELLING:
            return (AnswerHost(message.dialog_id, Dismissed()),)
        if self.state is TurnState.CANCELLING:
            return ()
        match message:
            case UsageSeen():
                self._usage = message  # the newest, told once at the end
                return ()
            case ToolUsed(call_id=call_id, status=status):
                if self._tools.get(call_id) == status or len(self._tools) >= TOOL_CALLS and call_id not in self._tools:
                    return ()
                self._tools[call_id] = status
            case Remarked():
                self._remarks += 1
                if self._remarks > REMARKS:
                    return ()
            case Asked(dialog_id=dialog_id):
                self._dialogs.add(dialog_id)
                self.state = TurnState.ASKING
                # What led to the question is read before it, however the agent broke its lines.
                return (*self._words(self._reply.pause(Boundary.TOOL)), Send(message))
            case DialogGone(dialog_id=dialog_id):
                if dialog_id not in self._dialogs:
                    return ()
                self._settle(dialog_id)
            case FileOffered() | SendAsked():
                pass
            case unknown:
                assert_never(unknown)
        return (Send(message),)

    def _answer(self, dialog_id: DialogId, answer: DialogAnswer) -> tuple[TurnEffect, ...]:
        if dialog_id not in self._dialogs:
            return ()
        self._settle(dialog_id)
        return (AnswerHost(dialog_id, answer),)

    def _settle(self, dialog_id: DialogId) -> None:
        self._dialogs.discard(dialog_id)
        if not self._dialogs and self.state is TurnState.ASKING:
            self.state = TurnState.RUNNING

    def _abort(self, now: float) -> tuple[TurnEffect, ...]:
        if self.state is TurnState.CANCELLING:
            return ()
        self.state = TurnState.CANCELLING
        self._give_up_at = now + self._stop_grace_s + REPORT_S
        dismissed = tuple(AnswerHost(dialog_id, Dismissed()) for dialog_id in sorted(self._dialogs))
        self._dialogs.clear()
        return (*dismissed, AbortHost())

    def _end(self, outcome: TurnOutcome, kind: FailureKind | None, detail: str) -> tuple[TurnEffect, ...]:
        # Also of an aborted turn: what was said before the abort belongs to the peer where the turn ran out of time.
        return (*self._words(self._reply.finish()), *self._report(outcome, kind, detail))

    def _report(self, outcome: TurnOutcome, kind: FailureKind | None, detail: str) -> tuple[TurnEffect, ...]:
        effects: list[TurnEffect] = []
        if self.state is TurnState.CANCELLING:
            outcome, kind, detail = TurnOutcome.ABORTED, None, ""
        if self._usage is not None:
            effects.append(Send(self._usage))
        effects.append(Send(TurnEnded(self._id, outcome, kind, detail)))
        self.state = TurnState.ENDED
        return tuple(effects)
