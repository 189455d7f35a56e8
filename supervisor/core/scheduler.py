"""Slots, queues, fairness, waiting lines, and who is asked to leave.

In come events (a prompt admitted, a worker's words, an order to stop, the clock); out go effects for scheduler.py to
perform. Per peer the order is strict; over all peers the oldest wait takes the next of `concurrency` slots. A turn that
waits for its peer holds no slot. A message stays QUEUED in the journal until it is given to a worker.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from protocol.ids import AccountId, Generation, PeerKey
from protocol.to_supervisor import TurnOutcome
from supervisor.core.lease import GoneWhy
from supervisor.core.states import MessageState


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Seconds, but for the counts; settled.md 34 and behaviour.md 4."""

    concurrency: int = 2
    max_warm: int = 32
    idle_s: float = 1800.0
    turn_timeout_s: float = 3600.0
    ack_s: float = 4.0
    ack_again_s: float = 60.0
    stop_hint_s: float = 30.0
    typing_s: float = 5.0


# --- events ---------------------------------------------------------------------------------------------------


class Told(StrEnum):
    """Does the peer know already that a message of theirs has to wait?"""

    NO = "no"
    YES = "yes"


@dataclass(frozen=True, slots=True)
class Queued:
    """An admitted prompt of this peer stands in the journal as QUEUED (or will, in the same transaction).

    held: its attachments are still on their way: it keeps its place, and is not begun before Fetched
    """

    who: PeerKey
    row: int
    told: Told = Told.NO
    held: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """All that the message brings is there, or will never be."""

    who: PeerKey
    row: int


@dataclass(frozen=True, slots=True)
class WorkerOpened:
    who: PeerKey
    generation: Generation


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """had_text: the turn it was running had said something by then."""

    who: PeerKey
    generation: Generation
    why: GoneWhy
    had_text: bool = False


@dataclass(frozen=True, slots=True)
class WorkerLeaves:
    """The worker ends by itself, after its turn where it has one: it takes no further one."""

    who: PeerKey
    generation: Generation


@dataclass(frozen=True, slots=True)
class StartRefused:
    """The worker may not be started now. paused: because others died at once, and the next try comes by itself."""

    who: PeerKey
    generation: Generation
    paused: bool = False


@dataclass(frozen=True, slots=True)
class TurnReported:
    """The worker says that the turn has ended. had_text as above."""

    who: PeerKey
    generation: Generation
    outcome: TurnOutcome
    had_text: bool


@dataclass(frozen=True, slots=True)
class DialogOpened:
    who: PeerKey


@dataclass(frozen=True, slots=True)
class DialogClosed:
    who: PeerKey


@dataclass(frozen=True, slots=True)
class StopAsked:
    who: PeerKey


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """The gateway lends this worker nothing more today: its turn ends with one line."""

    who: PeerKey
    generation: Generation


@dataclass(frozen=True, slots=True)
class FreshAsked:
    """A fresh conversation: the idle worker leaves. Only asked when no turn runs (Scheduler.turn_of)."""

    who: PeerKey


@dataclass(frozen=True, slots=True)
class GrantChanged:
    """Access, tools, agent or limits are others now: an idle worker leaves at once, a busy one after its turn."""

    who: PeerKey


@dataclass(frozen=True, slots=True)
class Removed:
    """Denied or logged out: the turn is stopped without a word, what waits is dropped."""

    who: PeerKey


@dataclass(frozen=True, slots=True)
class AccountHeld:
    """The account's login has expired: its peers' waiting messages are kept."""

    account: AccountId


@dataclass(frozen=True, slots=True)
class AccountFreed:
    account: AccountId


@dataclass(frozen=True, slots=True)
class Limited:
    """New settings."""

    limits: SchedulerLimits


@dataclass(frozen=True, slots=True)
class DiskFilled:
    """No turn begins until there is room again; what comes meanwhile waits."""


@dataclass(frozen=True, slots=True)
class DiskFreed:
    pass


@dataclass(frozen=True, slots=True)
class ShedAsked:
    """This idle worker is to leave, for the memory it takes; it stays if its peer has written meanwhile."""

    who: PeerKey
    generation: Generation


@dataclass(frozen=True, slots=True)
class DrainBegan:
    """No new turn from now on."""


@dataclass(frozen=True, slots=True)
class TurnCut:
    """The bridge goes away and gives this peer's running turn its outcome itself (closing.py)."""

    who: PeerKey


@dataclass(frozen=True, slots=True)
class Woke:
    """The moment named by wake_at has come."""


SchedulerEvent = (
    Queued
    | Fetched
    | WorkerOpened
    | WorkerLeaves
    | WorkerGone
    | StartRefused
    | TurnReported
    | DialogOpened
    | DialogClosed
    | StopAsked
    | BudgetSpent
    | FreshAsked
    | GrantChanged
    | Removed
    | AccountHeld
    | AccountFreed
    | Limited
    | DiskFilled
    | DiskFreed
    | ShedAsked
    | DrainBegan
    | TurnCut
    | Woke
)


# --- effects --------------------------------------------------------------------------------------------------


class Line(StrEnum):
    """Which notice goes with a message's end, or without one."""

    WAITING_OWN = "waiting_own"
    WAITING_OTHERS = "waiting_others"
    WAITING_READY = "waiting_ready"
    WAITING_ROOM = "waiting_room"
    WAITING_STILL_OWN = "waiting_still_own"
    WAITING_STILL_OTHERS = "waiting_still_others"
    WAITING_STILL_READY = "waiting_still_ready"
    STOP_HINT = "stop_hint"
    STOPPED = "stopped"
    NOTHING_RUNNING = "nothing_running"
    EMPTY = "empty"
    FAILED = "failed"
    BROKE_OFF = "broke_off"
    TIMED_OUT = "timed_out"
    TOOK_TOO_MUCH = "took_too_much"
    DECLINED = "declined"
    LIMITED = "limited"
    TOKEN_BUDGET = "token_budget"
    NOT_STARTED = "not_started"
    STARTS_PAUSED = "starts_paused"
    NOT_CONFIGURED = "not_configured"
    NOT_ISOLATED = "not_isolated"


@dataclass(frozen=True, slots=True)
class Start:
    who: PeerKey
    generation: Generation


@dataclass(frozen=True, slots=True)
class Give:
    """Mark the message RUNNING, then give it to the worker."""

    who: PeerKey
    generation: Generation
    row: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Ask the worker to end this turn."""

    who: PeerKey
    generation: Generation
    row: int


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The idle worker is to close its session and go."""

    who: PeerKey
    generation: Generation


@dataclass(frozen=True, slots=True)
class Close:
    """The message has its outcome. keep_text: words still unsent are sent; else they are dropped."""

    who: PeerKey
    row: int
    state: MessageState
    line: Line | None
    keep_text: bool
    still_waiting: int = 0


@dataclass(frozen=True, slots=True)
class Tell:
    """A courtesy line, or the answer to a stop that found nothing."""

    who: PeerKey
    line: Line


@dataclass(frozen=True, slots=True)
class MarkAsking:
    """The turn waits for its peer: its message is ASKING from now on."""

    who: PeerKey
    row: int


@dataclass(frozen=True, slots=True)
class MarkRunning:
    """And RUNNING again."""

    who: PeerKey
    row: int


@dataclass(frozen=True, slots=True)
class ShowTyping:
    who: PeerKey


@dataclass(frozen=True, slots=True)
class EndTyping:
    who: PeerKey


SchedulerEffect = Start | Give | Abort | LeaveAsked | Close | Tell | MarkAsking | MarkRunning | ShowTyping | EndTyping


# --- state ----------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    """A peer's worker, as far as the scheduler cares."""

    NONE = "none"
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    LEAVING = "leaving"


class PeerState(StrEnum):
    """What `status` says of a peer."""

    IDLE = "idle"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    ASKING = "asking"
    STOPPING = "stopping"


_CUT = {Line.TIMED_OUT: MessageState.FAILED, Line.TOKEN_BUDGET: MessageState.LIMITED}
_BROKEN_OFF = frozenset({TurnOutcome.ABORTED, TurnOutcome.FAILED})


@dataclass(slots=True)
class _Turn:
    row: int
    began: float
    asking: bool = False
    asking_since: float = 0.0
    closed: bool = False  # has its outcome; the worker has yet to end it
    cut: Line | None = None  # why it was told to end; has its outcome once it is known what it said until then
    hint_at: float | None = None  # stands while a dialog is open
    hint_left_s: float = 0.0
    timeout_at: float = 0.0


@dataclass(slots=True)
class _Waiting:
    row: int
    since: float
    held: bool = False


@dataclass(slots=True)
class _Peer:
    who: PeerKey
    waiting: deque[_Waiting] = field(default_factory=deque)
    phase: Phase = Phase.NONE
    generation: Generation = Generation(0)
    turn: _Turn | None = None
    slot: bool = False  # holds the right to run its head message
    idle_since: float = 0.0
    leave_after: bool = False
    episode_since: float | None = None
    acks: int = 0
    typing_at: float | None = None


class Scheduler:
    """Knows no clock, process or message text. `now` is monotonic seconds."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self._peers: dict[PeerKey, _Peer] = {}
        self._held: set[AccountId] = set()
        self._draining = False
        self.disk_full = False
        self._story: deque[str] = deque(maxlen=40)

    # -- what others may ask

    def state_of(self, who: PeerKey) -> PeerState:
        peer = self._peers.get(who)
        if peer is None:
            return PeerState.IDLE
        if peer.turn is not None:
            if peer.turn.closed or peer.turn.cut is not None:
                return PeerState.STOPPING
            return PeerState.ASKING if peer.turn.asking else PeerState.RUNNING
        if peer.slot:
            return PeerState.STARTING
        return PeerState.QUEUED if peer.waiting else PeerState.IDLE

    def turn_of(self, who: PeerKey) -> tuple[int, float] | None:
        """The row of the turn that runs, and since when; None when none does. A stopped one counts until it has ended."""
        peer = self._peers.get(who)
        return (peer.turn.row, peer.turn.began) if peer and peer.turn else None

    def may_ask(self, who: PeerKey, row: int) -> bool:
        """Does this turn run, and has it not been told to end?"""
        peer = self._peers.get(who)
        turn = peer.turn if peer else None
        return turn is not None and turn.row == row and not turn.closed and turn.cut is None

    def waiting_of(self, who: PeerKey) -> int:
        peer = self._peers.get(who)
        return len(peer.waiting) if peer else 0

    def generation_of(self, who: PeerKey) -> Generation:
        peer = self._peers.get(who)
        return peer.generation if peer else Generation(0)

    def busy(self) -> tuple[PeerKey, ...]:
        """Peers whose turn runs and has no outcome yet."""
        return tuple(p.who for p in self._peers.values() if p.turn and not p.turn.closed)

    def queued(self) -> tuple[PeerKey, ...]:
        return tuple(p.who for p in self._peers.values() if p.waiting)

    def at_rest(self) -> bool:
        """No turn runs and no worker is being started."""
        return not any(p.turn or p.slot for p in self._peers.values())

    def seed(self, who: PeerKey, generation: Generation) -> None:
        """At start: generations go on from the journal's."""
        self._peer(who).generation = generation

    # -- the machine

    def step(self, event: SchedulerEvent, now: float) -> tuple[SchedulerEffect, ...]:
        effects: list[SchedulerEffect] = []
        self._story.append(f"{now:.3f} {event}")
        match event:
            case Fetched(who, row):
                for one in self._peer(who).waiting:
                    one.held = one.held and one.row != row
            case Queued(who, row, told, held):
                peer = self._peer(who)
                peer.waiting.append(_Waiting(row, now, held))
                if peer.episode_since is None:
                    peer.episode_since, peer.acks = now, 0
                if told is Told.YES:
                    peer.acks = max(peer.acks, 1)
                if peer.typing_at is None and who.account not in self._held:
                    peer.typing_at = now
            case WorkerOpened(who, generation):
                peer = self._peer(who)
                if peer.generation == generation and peer.phase is Phase.STARTING:
                    peer.phase, peer.idle_since = Phase.IDLE, now
                    if peer.leave_after:
                        self._leave(peer, effects)
            case WorkerLeaves(who, generation):
                peer = self._peer(who)
                if peer.generation == generation:
                    self._leave_soon(peer, effects)
            case WorkerGone(who, generation, why, had_text):
                self._gone(self._peer(who), generation, why, had_text, effects)
            case StartRefused(who, generation, paused):
                line = Line.STARTS_PAUSED if paused else Line.NOT_STARTED
                self._gone(self._peer(who), generation, GoneWhy.START_FAILED, False, effects, line)
            case TurnReported(who, generation, outcome, had_text):
                self._reported(self._peer(who), generation, outcome, had_text, now, effects)
            case DialogOpened(who):
                self._dialog_opened(self._peer(who), now, effects)
            case DialogClosed(who):
                self._dialog_closed(self._peer(who), now, effects)
            case StopAsked(who):
                self._stop(self._peer(who), effects)
            case BudgetSpent(who, generation):
                peer = self._peer(who)
                if peer.generation == generation:
                    self._cut(peer, Line.TOKEN_BUDGET, effects)
            case FreshAsked(who) | GrantChanged(who):
                self._leave_soon(self._peer(who), effects)
            case Removed(who):
                self._remove(self._peer(who), effects)
            case AccountHeld(account):
                self._held.add(account)
                for peer in self._of(account):
                    peer.typing_at = None if peer.turn is None else peer.typing_at
            case AccountFreed(account):
                self._held.discard(account)
                for peer in self._of(account):
                    if peer.waiting:
                        peer.episode_since, peer.acks = now, 0
                        peer.typing_at = now
            case Limited(limits):
                self._limits = limits
            case DiskFilled():
                self.disk_full = True
            case DiskFreed():
                self.disk_full = False
            case ShedAsked(who, generation):
                peer = self._peer(who)
                if peer.phase is Phase.IDLE and peer.generation == generation and not self._wanted(peer):
                    self._leave(peer, effects)
            case DrainBegan():
                self._draining = True
            case TurnCut(who):
                turn = self._peer(who).turn
                if turn is not None:
                    turn.closed, turn.asking, turn.hint_at = True, False, None
            case Woke():
                pass
            case _:
                assert_never(event)
        self._timers(now, effects)
        self._schedule(now, effects)
        self._typing_ends(effects)
        self._story.extend(str(effect) for effect in effects)
        return tuple(effects)

    def wake_at(self) -> float | None:
        """The next moment at which time alone changes something."""
        times: list[float] = []
        for peer in self._peers.values():
            if peer.typing_at is not None:
                times.append(peer.typing_at)
            if peer.phase is Phase.IDLE and not self._wanted(peer):
                times.append(peer.idle_since + self._limits.idle_s)
            at = self._ack_at(peer)
            if at is not None:
                times.append(at)
            if peer.turn is not None:
                if peer.turn.hint_at is not None:
                    times.append(peer.turn.hint_at)
                if not peer.turn.closed and peer.turn.cut is None and not peer.turn.asking:
                    times.append(peer.turn.timeout_at)
        return min(times, default=None)

    def story(self) -> str:
        """Recent events and effects, for the message of an impossible event."""
        return "\n".join(self._story)

    # -- events

    def _gone(
        self,
        peer: _Peer,
        generation: Generation,
        why: GoneWhy,
        had_text: bool,
        effects: list[SchedulerEffect],
        not_started: Line = Line.NOT_STARTED,
    ) -> None:
        if generation != peer.generation or peer.phase is Phase.NONE:
            return  # late news of a generation already replaced
        turn, starting = peer.turn, peer.phase is Phase.STARTING
        peer.phase, peer.turn, peer.leave_after = Phase.NONE, None, False
        if turn is not None and not turn.closed:
            without = Line.TOOK_TOO_MUCH if why is GoneWhy.LIMIT else Line.FAILED
            line = turn.cut or (Line.BROKE_OFF if had_text else without)
            effects.append(Close(peer.who, turn.row, _CUT.get(line, MessageState.FAILED), line, keep_text=True))
        if peer.slot:
            peer.slot = False
            if starting and peer.waiting and why is not GoneWhy.LEFT and why is not GoneWhy.STOPPED:
                head = peer.waiting.popleft()
                lines = {GoneWhy.LAYER_MISSING: Line.NOT_ISOLATED, GoneWhy.NOT_CONFIGURED: Line.NOT_CONFIGURED}
                line = lines.get(why, not_started)
                effects.append(Close(peer.who, head.row, MessageState.FAILED, line, keep_text=False))
        self._episode_ends(peer)

    def _reported(
        self,
        peer: _Peer,
        generation: Generation,
        outcome: TurnOutcome,
        had_text: bool,
        now: float,
        effects: list[SchedulerEffect],
    ) -> None:
        turn = peer.turn
        if generation != peer.generation or turn is None:
            return
        peer.turn, peer.slot = None, False
        peer.phase, peer.idle_since = Phase.IDLE, now
        if not turn.closed:
            effects.append(self._outcome(peer, turn, outcome, had_text))
        if peer.leave_after:
            self._leave(peer, effects)

    def _outcome(self, peer: _Peer, turn: _Turn, outcome: TurnOutcome, had_text: bool) -> Close:
        state, line = {
            TurnOutcome.COMPLETED: (MessageState.ANSWERED, None) if had_text else (MessageState.EMPTY, Line.EMPTY),
            TurnOutcome.ABORTED: (MessageState.STOPPED, Line.STOPPED),
            TurnOutcome.DECLINED: (MessageState.DECLINED, Line.DECLINED),
            TurnOutcome.LIMIT: (MessageState.LIMITED, Line.LIMITED),
            TurnOutcome.FAILED: (MessageState.FAILED, Line.BROKE_OFF if had_text else Line.FAILED),
        }[outcome]
        # An agent that was refused a model may well end with words about that; a late answer is an answer.
        if turn.cut is not None and (turn.cut is Line.TOKEN_BUDGET or outcome in _BROKEN_OFF):
            state, line = _CUT[turn.cut], turn.cut
        return Close(peer.who, turn.row, state, line, keep_text=True, still_waiting=len(peer.waiting))

    def _dialog_opened(self, peer: _Peer, now: float, effects: list[SchedulerEffect]) -> None:
        """The turn's clocks stand: it is not the agent who takes the time."""
        turn = peer.turn
        if turn is None or turn.closed or turn.cut is not None or turn.asking:
            return
        turn.asking, turn.asking_since = True, now
        if turn.hint_at is not None:
            turn.hint_left_s, turn.hint_at = turn.hint_at - now, None
        effects.append(MarkAsking(peer.who, turn.row))

    def _dialog_closed(self, peer: _Peer, now: float, effects: list[SchedulerEffect]) -> None:
        turn = peer.turn
        if turn is None or not turn.asking:
            return
        turn.asking = False
        turn.timeout_at += now - turn.asking_since
        if turn.hint_left_s > 0:
            turn.hint_at, turn.hint_left_s = now + turn.hint_left_s, 0.0
        if peer.typing_at is not None:
            peer.typing_at = now
        effects.append(MarkRunning(peer.who, turn.row))

    def _stop(self, peer: _Peer, effects: list[SchedulerEffect]) -> None:
        if peer.turn is not None and not peer.turn.closed:
            self._end_turn(peer, MessageState.STOPPED, Line.STOPPED, effects)
        elif peer.waiting:
            head = peer.waiting.popleft()
            self._let_go_of_slot(peer)
            effects.append(
                Close(
                    peer.who,
                    head.row,
                    MessageState.STOPPED,
                    Line.STOPPED,
                    keep_text=False,
                    still_waiting=len(peer.waiting),
                )
            )
            self._episode_ends(peer)
        else:
            effects.append(Tell(peer.who, Line.NOTHING_RUNNING))

    def _end_turn(self, peer: _Peer, state: MessageState, line: Line | None, effects: list[SchedulerEffect]) -> None:
        """Give the running turn its outcome now; its worker has yet to end it, and is gone if it does not (lease.py)."""
        turn = peer.turn
        if turn is None:
            raise RuntimeError(f"no turn to end\n{self.story()}")
        turn.closed, turn.asking, turn.hint_at = True, False, None
        keep = state is not MessageState.STOPPED
        effects.append(Abort(peer.who, peer.generation, turn.row))
        effects.append(Close(peer.who, turn.row, state, line, keep_text=keep, still_waiting=len(peer.waiting)))

    def _cut(self, peer: _Peer, line: Line, effects: list[SchedulerEffect]) -> None:
        """Have the running turn ended. Its line waits for what the worker still holds of an unfinished one, or for the
        worker's death."""
        turn = peer.turn
        if turn is not None and not turn.closed and turn.cut is None:
            turn.cut, turn.asking, turn.hint_at = line, False, None
            effects.append(Abort(peer.who, peer.generation, turn.row))

    def _remove(self, peer: _Peer, effects: list[SchedulerEffect]) -> None:
        for waiting in peer.waiting:
            effects.append(Close(peer.who, waiting.row, MessageState.DROPPED, None, keep_text=False))
        peer.waiting.clear()
        self._let_go_of_slot(peer)
        self._episode_ends(peer)
        if peer.turn is not None and not peer.turn.closed:
            self._end_turn(peer, MessageState.STOPPED, None, effects)
            peer.leave_after = True
        elif peer.phase is Phase.IDLE:
            self._leave(peer, effects)
        elif peer.phase is Phase.STARTING:
            peer.leave_after = True

    # -- what follows from any step

    def _timers(self, now: float, effects: list[SchedulerEffect]) -> None:
        for peer in self._peers.values():
            turn = peer.turn
            if turn is not None:
                if turn.hint_at is not None and now >= turn.hint_at:
                    turn.hint_at = None
                    effects.append(Tell(peer.who, Line.STOP_HINT))
                if now >= turn.timeout_at and not turn.asking:
                    self._cut(peer, Line.TIMED_OUT, effects)
            at = self._ack_at(peer)
            if at is not None and now >= at:
                own = turn is not None
                first = peer.acks == 0
                peer.acks += 1
                # A pause that outlasted both moments (a suspended machine) yields one line, not two at once.
                if peer.episode_since is not None and now >= peer.episode_since + self._limits.ack_again_s:
                    peer.acks = 2
                if self.disk_full and not own:
                    peer.acks, line = 2, Line.WAITING_ROOM
                elif own:
                    line = Line.WAITING_OWN if first else Line.WAITING_STILL_OWN
                elif peer.slot or (peer.waiting and peer.waiting[0].held):
                    line = Line.WAITING_READY if first else Line.WAITING_STILL_READY  # a worker, or an attachment
                else:
                    line = Line.WAITING_OTHERS if first else Line.WAITING_STILL_OTHERS
                effects.append(Tell(peer.who, line))
            if peer.typing_at is not None and now >= peer.typing_at:
                peer.typing_at = now + self._limits.typing_s
                if turn is None or not turn.asking:
                    effects.append(ShowTyping(peer.who))
            if peer.phase is Phase.IDLE and not self._wanted(peer) and now >= peer.idle_since + self._limits.idle_s:
                self._leave(peer, effects)

    def _schedule(self, now: float, effects: list[SchedulerEffect]) -> None:
        for peer in self._peers.values():
            if peer.slot and peer.turn is None and peer.waiting and peer.waiting[0].held:
                peer.slot = False  # others need it meanwhile
        if not self._draining and not self.disk_full:
            free = self._limits.concurrency - sum(self._counts(p) for p in self._peers.values())
            for peer in self._oldest_wait_first():
                if free <= 0:
                    break
                peer.slot = True
                free -= 1
        for peer in self._peers.values():
            if peer.slot and peer.turn is None and peer.waiting:
                self._advance(peer, now, effects)
        self._shed_warm(effects)

    def _advance(self, peer: _Peer, now: float, effects: list[SchedulerEffect]) -> None:
        """Bring the head message of a peer with a slot one move nearer to its turn."""
        if peer.phase is Phase.NONE:
            peer.generation = Generation(peer.generation + 1)
            peer.phase, peer.leave_after = Phase.STARTING, False
            effects.append(Start(peer.who, peer.generation))
        elif peer.phase is Phase.IDLE:
            head = peer.waiting.popleft()
            peer.phase = Phase.BUSY
            peer.turn = _Turn(
                head.row,
                began=now,
                hint_at=now + self._limits.stop_hint_s,
                timeout_at=now + self._limits.turn_timeout_s,
            )
            effects.append(Give(peer.who, peer.generation, head.row))
            self._episode_ends(peer)

    def _shed_warm(self, effects: list[SchedulerEffect]) -> None:
        idle = [p for p in self._peers.values() if p.phase is Phase.IDLE and not self._wanted(p)]
        idle.sort(key=lambda p: p.idle_since)
        for peer in idle[: max(0, len(idle) - self._limits.max_warm)]:
            self._leave(peer, effects)

    def _typing_ends(self, effects: list[SchedulerEffect]) -> None:
        for peer in self._peers.values():
            open_turn = peer.turn is not None and not peer.turn.closed
            if peer.typing_at is not None and not open_turn and not peer.waiting:
                peer.typing_at = None
                effects.append(EndTyping(peer.who))

    def _leave_soon(self, peer: _Peer, effects: list[SchedulerEffect]) -> None:
        """At once where nothing runs, else after the turn."""
        if peer.phase is Phase.IDLE:
            self._leave(peer, effects)
        elif peer.phase in (Phase.STARTING, Phase.BUSY):
            peer.leave_after = True

    def _leave(self, peer: _Peer, effects: list[SchedulerEffect]) -> None:
        peer.phase, peer.leave_after = Phase.LEAVING, False
        effects.append(LeaveAsked(peer.who, peer.generation))

    # -- small questions

    def _peer(self, who: PeerKey) -> _Peer:
        peer = self._peers.get(who)
        if peer is None:
            peer = self._peers[who] = _Peer(who)
        return peer

    def _of(self, account: AccountId) -> Iterable[_Peer]:
        return [p for p in self._peers.values() if p.who.account == account]

    def _counts(self, peer: _Peer) -> bool:
        """Does this peer take one of the slots? Not while its turn waits for an answer."""
        return peer.slot and not (peer.turn is not None and peer.turn.asking)

    def _oldest_wait_first(self) -> list[_Peer]:
        ready = [
            p
            for p in self._peers.values()
            if p.waiting and not p.waiting[0].held and not p.slot and p.turn is None and p.who.account not in self._held
        ]
        return sorted(ready, key=lambda p: p.waiting[0].since)

    def _wanted(self, peer: _Peer) -> bool:
        """Something waits that this worker will be given as soon as a slot is free."""
        return bool(peer.waiting)

    def _let_go_of_slot(self, peer: _Peer) -> None:
        """A peer with nothing left to run gives its slot back; a worker being started goes on and stays warm."""
        if peer.turn is None and not peer.waiting:
            peer.slot = False

    def _ack_at(self, peer: _Peer) -> float | None:
        if peer.episode_since is None or peer.acks >= 2 or peer.who.account in self._held:
            return None
        return peer.episode_since + (self._limits.ack_s if peer.acks == 0 else self._limits.ack_again_s)

    def _episode_ends(self, peer: _Peer) -> None:
        if not peer.waiting:
            peer.episode_since, peer.acks = None, 0
