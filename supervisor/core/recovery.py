"""The journal as found at start → what happens next.

In come the messages that were not at their end; out go orders for start.py, in the order in which to carry them out.
Each order is one transaction or one hand-over, so that a death half-way leaves a journal from which the rest is decided
again. Open parts need no order: delivery.py's Outbox.restore takes them up as they stand, before any of this.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from protocol.ids import PeerKey
from supervisor.core.states import MessageRow, MessageState, PartKind, PartRow

DEATHS = 2  # of the supervisor, while it handled one message: then that message is set aside


@dataclass(frozen=True, slots=True)
class Interrupt:
    """INTERRUPTED, with the line to the peer and the note for the session's next turn, all in one transaction.

    told      an outcome line of this turn stands among the open parts already
    earlier   the peer's words, for the note
    """

    row: int
    who: PeerKey
    told: bool
    earlier: str


@dataclass(frozen=True, slots=True)
class SetAside:
    """DEAD. The peer hears the failed line only if admitted (nobody has judged that yet); the operator gets the hook."""

    row: int
    who: PeerKey


@dataclass(frozen=True, slots=True)
class RunAgain:
    """Back into the peer's queue: it never began."""

    row: int
    who: PeerKey


@dataclass(frozen=True, slots=True)
class Handle:
    """Intake had not finished with it: as if it had just been recorded, with BeginHandling first."""

    row: int


Order = Interrupt | SetAside | RunAgain | Handle


def recover(messages: Iterable[MessageRow], parts: Iterable[PartRow]) -> tuple[Order, ...]:
    """What to do with every message that was open when the supervisor ended.

    messages   open ones, in any order; parts: the open ones
    returns    first what was cut off and set aside, so that each peer's line stands before what runs next; then what
               waits, then what intake has yet to see, each oldest first
    raises     ValueError for a message that is not open
    """
    told = {part.message_row for part in parts if part.kind is PartKind.OUTCOME}
    orders = [_order(message, told) for message in sorted(messages, key=lambda message: message.row)]
    return tuple(sorted(orders, key=lambda order: _RANK[type(order)]))


_RANK: dict[type[Order], int] = {Interrupt: 0, SetAside: 0, RunAgain: 1, Handle: 2}


def _order(message: MessageRow, told: set[int | None]) -> Order:
    match message.state:
        case MessageState.RECEIVED:
            return SetAside(message.row, message.who) if message.handled >= DEATHS else Handle(message.row)
        case MessageState.QUEUED:
            return RunAgain(message.row, message.who)
        case MessageState.RUNNING | MessageState.ASKING:
            return Interrupt(message.row, message.who, message.row in told, message.text)
        case (
            MessageState.IGNORED
            | MessageState.REFUSED
            | MessageState.TURNED_AWAY
            | MessageState.COMMAND
            | MessageState.ANSWER
            | MessageState.ANSWERED
            | MessageState.STOPPED
            | MessageState.EMPTY
            | MessageState.FAILED
            | MessageState.LIMITED
            | MessageState.DECLINED
            | MessageState.INTERRUPTED
            | MessageState.DROPPED
            | MessageState.DEAD
        ):
            raise ValueError(f"message {message.row} is {message.state}: not open")
        case unknown:
            assert_never(unknown)
