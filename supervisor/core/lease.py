"""One worker's life, and what it may say in each state.

In come messages and the clock; out comes a verdict for each message and the moment by which the worker must have
spoken. pool.py performs it: a violation, a silence or a late start ends the worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from protocol.ids import LeaseKey, SessionId, TurnId
from protocol.to_supervisor import (
    VERSION,
    Asked,
    DialogGone,
    FileOffered,
    FormBroken,
    Leaving,
    LimitPassed,
    OpenedHow,
    OpenFailed,
    PieceMade,
    Pulse,
    Ready,
    Remarked,
    SendAsked,
    SessionOpened,
    ToolUsed,
    ToSupervisor,
    TurnEnded,
    UsageSeen,
    WorkerExited,
)


class LeaseState(StrEnum):
    STARTING = "starting"  # until Ready
    OPENING = "opening"  # granted; the agent program starts
    IDLE = "idle"
    BUSY = "busy"
    LEAVING = "leaving"  # asked to leave
    GONE = "gone"


_ALWAYS: frozenset[type[ToSupervisor]] = frozenset({Leaving, WorkerExited, FormBroken, LimitPassed})
_TURN: frozenset[type[ToSupervisor]] = frozenset(
    {Pulse, PieceMade, ToolUsed, Asked, DialogGone, FileOffered, SendAsked, UsageSeen, Remarked, TurnEnded}
)

MAY_SAY: Mapping[LeaseState, frozenset[type[ToSupervisor]]] = {
    LeaseState.STARTING: _ALWAYS | {Ready},
    LeaseState.OPENING: _ALWAYS | {Pulse, SessionOpened, OpenFailed, Remarked},
    LeaseState.IDLE: _ALWAYS | {Pulse, Remarked},
    LeaseState.BUSY: _ALWAYS | _TURN,
    LeaseState.LEAVING: _ALWAYS | {Pulse, Remarked},
    LeaseState.GONE: frozenset(),  # late words of a reaped worker are dropped
}


class Word(StrEnum):
    """The verdict on one message."""

    HEARD = "heard"
    DROPPED = "dropped"  # late: the lease is gone
    BROKEN = "broken"  # a protocol violation


class Watch(StrEnum):
    """What a worker has not done in time."""

    READY = "ready"
    OPEN = "open"
    HANG = "hang"  # fell silent
    STOP = "stop"  # did not end its turn when told to
    LEAVE = "leave"  # did not leave when asked to


class GoneWhy(StrEnum):
    """How a worker ended, as its peer and the operator have to know it."""

    LEFT = "left"  # asked to leave, and did
    STOPPED = "stopped"  # killed on our order
    CRASHED = "crashed"  # after Ready, by itself
    HUNG = "hung"
    VIOLATION = "violation"
    LIMIT = "limit"  # its tree took more than it may; the detail begins with the limit's name
    START_FAILED = "start_failed"  # dead or silent before Ready
    LAYER_MISSING = "layer_missing"  # a required layer was not achieved
    OPEN_FAILED = "open_failed"  # the agent program did not open
    NOT_CONFIGURED = "not_configured"  # the settings name no agent program that starts


@dataclass(frozen=True, slots=True)
class Opened:
    """The worker may be given turns."""

    key: LeaseKey
    session_id: SessionId
    how: OpenedHow
    agent: str


@dataclass(frozen=True, slots=True)
class Said:
    """A word of the running turn that its lease allowed."""

    key: LeaseKey
    message: PieceMade | ToolUsed | Asked | DialogGone | FileOffered | SendAsked | UsageSeen | Remarked | TurnEnded


@dataclass(frozen=True, slots=True)
class Leaves:
    """The worker is about to end by itself (its agent program has): it may be given no further turn. Gone follows."""

    key: LeaseKey


@dataclass(frozen=True, slots=True)
class Gone:
    """No process of this worker is left and its lease is revoked. detail: one line for the log, no peer's words."""

    key: LeaseKey
    why: GoneWhy
    detail: str


PoolEvent = Opened | Said | Leaves | Gone


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds; behaviour.md 4."""

    ready_s: float = 20.0
    open_s: float = 60.0
    hang_s: float = 10.0
    leave_s: float = 5.0


class Lease:
    """Knows no clock and no process. `now` is monotonic seconds. sends: its session has the `send` tool"""

    def __init__(self, key: LeaseKey, limits: Limits, *, now: float, sends: bool = False) -> None:
        self.key = key
        self.state = LeaseState.STARTING
        self.turn: TurnId | None = None
        self.reason = ""  # of the last BROKEN
        self._limits = limits
        self._sends = sends
        self._since = now
        self._heard = now
        self._pieces = 0
        self._stop_within_s: float | None = None  # the turn was aborted
        self._stop_since = now

    def hear(self, message: ToSupervisor, *, now: float) -> Word:
        """Judge one message and move. reason holds the rule that a BROKEN one broke."""
        if self.state is LeaseState.GONE:
            return Word.DROPPED
        self._heard = now
        if type(message) not in MAY_SAY[self.state]:
            return self._break(f"{type(message).__name__} while {self.state}")
        match message:
            case Ready(version=version):
                if version != VERSION:
                    return self._break(f"protocol version {version}")
                self._enter(LeaseState.OPENING, now)
            case SessionOpened():
                self._enter(LeaseState.IDLE, now)
            case PieceMade(turn_id=turn, number=number):
                if turn != self.turn:
                    return self._break("a piece of another turn")
                if number != self._pieces:
                    return self._break("a piece out of order")
                self._pieces += 1
            case TurnEnded(turn_id=turn):
                if turn != self.turn:
                    return self._break("the end of another turn")
                self.turn = None
                self._stop_within_s = None
                self._enter(LeaseState.IDLE, now)
            case Asked(turn_id=turn) | DialogGone(turn_id=turn) | ToolUsed(turn_id=turn) | FileOffered(turn_id=turn):
                if turn != self.turn:
                    return self._break(f"{type(message).__name__} of another turn")
            case SendAsked(turn_id=turn):
                if not self._sends:
                    return self._break("a send from a session without that tool")
                if turn != self.turn:
                    return self._break("a send of another turn")
            case UsageSeen(turn_id=turn):
                if turn != self.turn:
                    return self._break("usage of another turn")
            case _:
                pass
        return Word.HEARD

    def begin(self, turn: TurnId, *, now: float) -> None:
        """A turn is being given to this worker. raises RuntimeError unless it is idle"""
        if self.state is not LeaseState.IDLE:
            raise RuntimeError(f"turn given to a worker that is {self.state}")
        self.turn = turn
        self._pieces = 0
        self._heard = now  # an idle worker is silent; only from now on is that a sign
        self._enter(LeaseState.BUSY, now)

    def abort(self, turn: TurnId, *, within_s: float, now: float) -> None:
        """This turn was told to end and has so long to do it. Another turn, or a second time, changes nothing."""
        if turn == self.turn and self._stop_within_s is None:
            self._stop_within_s = within_s
            self._stop_since = now

    def leave(self, *, now: float) -> None:
        """Asked to leave in order. raises RuntimeError unless it is idle"""
        if self.state is not LeaseState.IDLE:
            raise RuntimeError(f"asked to leave while {self.state}")
        self._enter(LeaseState.LEAVING, now)

    def end(self) -> None:
        """Revoked: whatever it still says is dropped."""
        self.state = LeaseState.GONE
        self.turn = None

    def rearm(self, *, now: float) -> None:
        """The supervisor itself was away (a gap in its loop, a suspended machine): all watches start anew."""
        self._since = now
        self._heard = now
        self._stop_since = now

    def wake_at(self) -> float | None:
        """When this lease is overdue unless something is heard before; None while nothing is due."""
        return min((at for at, _ in self._watches()), default=None)

    def overdue(self, *, now: float) -> Watch | None:
        """The watch that ran out first; None while all is well."""
        at, watch = min(self._watches(), default=(now + 1, None))
        return watch if now >= at else None

    def _watches(self) -> list[tuple[float, Watch]]:
        match self.state:
            case LeaseState.STARTING:
                return [(self._since + self._limits.ready_s, Watch.READY)]
            case LeaseState.OPENING:
                return [
                    (self._since + self._limits.open_s, Watch.OPEN),
                    (self._heard + self._limits.hang_s, Watch.HANG),
                ]
            case LeaseState.BUSY:
                silent = (self._heard + self._limits.hang_s, Watch.HANG)
                if self._stop_within_s is None:
                    return [silent]
                return [silent, (self._stop_since + self._stop_within_s, Watch.STOP)]
            case LeaseState.LEAVING:
                return [(self._since + self._limits.leave_s, Watch.LEAVE)]
            case LeaseState.IDLE | LeaseState.GONE:
                return []

    def _enter(self, state: LeaseState, now: float) -> None:
        self.state = state
        self._since = now

    def _break(self, reason: str) -> Word:
        self.reason = reason
        return Word.BROKEN
