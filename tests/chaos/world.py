"""The cores of a supervisor driven together, by hand: scheduler, leases, composers, outboxes, recovery, over a real Store.

What the shells do between them is done here without tasks or clocks: a step, a commit, then the effects in order. So any
order of events can be played, and the supervisor can die between any two of them. Outside stands a world that obeys:
WeChat with its budget, and workers that start, speak, end, crash, hang and speak too late.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protocol.ids import AccountId, Cursor, Generation, LeaseKey, MessageId, PeerId, PeerKey, SendKey, SessionId, TurnId
from protocol.to_supervisor import (
    VERSION,
    Boundary,
    OpenedHow,
    PieceMade,
    Ready,
    SessionOpened,
    ToSupervisor,
    TurnEnded,
    TurnOutcome,
)
from supervisor import notices
from supervisor.channels.base import Batch, RawMessage
from supervisor.core.bubbles import Composer, Size, numbered
from supervisor.core.delivery import (
    Accepted,
    Enqueued,
    Mark,
    Outbox,
    OutboxEffect,
    OutboxEvent,
    ParkedUnwanted,
    Part,
    PeerWrote,
    Rejected,
    Rules,
    Send,
    TurnOpened,
    TurnStopped,
    Unanswered,
)
from supervisor.core.delivery import Woke as OutboxWoke
from supervisor.core.lease import GoneWhy, Lease, Limits, Word
from supervisor.core.policy import InterimText
from supervisor.core.recovery import Handle, Interrupt, RunAgain, SetAside, recover
from supervisor.core.scheduler import (
    Abort,
    Close,
    Give,
    LeaveAsked,
    Line,
    Queued,
    Scheduler,
    SchedulerEvent,
    SchedulerLimits,
    Start,
    StopAsked,
    Tell,
    TurnReported,
    Woke,
    WorkerGone,
    WorkerOpened,
)
from supervisor.core.states import MessageRow, MessageState, PartKind, PartState
from supervisor.scheduler import COURTESY, notice_of
from supervisor.store import (
    AddPart,
    BeginHandling,
    Change,
    Heard,
    SetGeneration,
    SetInterruptedNote,
    SetMessage,
    SetPart,
    StartedTurn,
    Store,
)

ACCOUNT = AccountId("me@im.wechat")
PEERS = tuple(PeerKey(ACCOUNT, PeerId(f"{name}@im.wechat")) for name in "abc")
RULES = Rules(budget=4, reserve=1, gap_s=0.0)
SIZE = Size(120, 600)
LIMITS = SchedulerLimits(concurrency=2, max_warm=2, idle_s=500.0, turn_timeout_s=300.0)
LEASE = Limits()
STOP_S = 3.0
MORE = "more waits"
TICK_S = 0.001  # between any two things that happen, so that it is never open which came first


class Died(Exception):
    """The supervisor was killed here."""


@dataclass(slots=True)
class Chat:
    """One peer's conversation as WeChat has it. sent: since their last message"""

    shown: list[tuple[SendKey, str]] = field(default_factory=list)
    sent: int = 0
    refused: int = 0  # over its budget: never to happen


@dataclass(slots=True)
class WeChat:
    """Keeps what it handed out until the next cursor shows that it was recorded, as "rewind" does."""

    chats: dict[PeerKey, Chat] = field(default_factory=lambda: defaultdict(Chat))
    written: list[tuple[PeerKey, str, float]] = field(default_factory=list)

    def write(self, who: PeerKey, text: str, now: float) -> None:
        self.written.append((who, text, now))
        self.chats[who].sent = 0

    def batch(self, cursor: Cursor) -> Batch:
        start = int(cursor or 0)
        messages = [
            RawMessage(MessageId(f"m{number}"), who.peer, int(at * 1000), None, json.dumps(text).encode())
            for number, (who, text, at) in enumerate(self.written[start:], start)
        ]
        return Batch(tuple(messages), Cursor(str(len(self.written))), None)

    def take(self, who: PeerKey, key: SendKey, text: str) -> bool:
        """False: refused."""
        chat = self.chats[who]
        if key in {shown for shown, _ in chat.shown}:
            return True
        if chat.sent >= RULES.budget:
            chat.refused += 1
            return False
        chat.sent += 1
        chat.shown.append((key, text))
        return True


@dataclass(slots=True)
class Worker:
    """A worker's process. turn: what it was given; said: pieces of it"""

    key: LeaseKey
    stage: str = "forked"  # ready | idle | busy | dead
    turn: int | None = None
    said: int = 0
    stopped: bool = False


class Supervisor:
    """One life, from the journal as it stands to its death."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.scheduler = Scheduler(LIMITS)
        self.leases: dict[LeaseKey, Lease] = {}
        self.boxes = {who: Outbox(SIZE, RULES) for who in PEERS}
        self.composers: dict[tuple[PeerKey, int], Composer] = {}
        self.ended: set[int] = set()
        self.changes: dict[PeerKey, list[Change]] = defaultdict(list)
        self.sends: dict[PeerKey, Send] = {}
        self._carry_on()

    @property
    def now(self) -> float:
        return self.world.now

    # -- start

    def _carry_on(self) -> None:
        """start.py"""
        store = self.world.store
        messages = {message.row: message for message in store.open_messages()}
        parts, records = store.open_parts(), {record.who: record for record in store.peers()}
        landed = store.landed()
        for who, record in records.items():
            self.scheduler.seed(who, record.generation)
        for who in PEERS:
            mine = [
                (Part(r.send_key, r.kind, r.text, r.message_row), r.state, r.attempts) for r in parts if r.who == who
            ]
            known = records.get(who)
            heard_at = known.last_inbound_at if known else None
            spent = known.spent if known else 0
            effects = self.boxes[who].restore(
                mine, spent=spent, heard_at=heard_at, more_line=MORE, now=self.now, landed_at=landed.get(who, ())
            )
            self._absorb(who, effects)
        unseen: list[MessageRow] = []
        for order in recover(messages.values(), parts):
            match order:
                case Interrupt(row, who, told, earlier):
                    changes: list[Change] = [
                        SetMessage(row, MessageState.INTERRUPTED, self.now),
                        SetInterruptedNote(who, earlier),
                    ]
                    if told:
                        self.world.commit(changes)
                    else:
                        self.notice(who, notices.interrupted().en, PartKind.OUTCOME, changes)
                case SetAside(row, who):
                    dead = SetMessage(row, MessageState.DEAD, self.now)
                    self.notice(who, notices.failed().en, PartKind.OUTCOME, [dead])
                case RunAgain(row, who):
                    self.take(Queued(who, row))
                case Handle(row):
                    unseen.append(messages[row])
        if unseen:
            self.world.commit([BeginHandling(unseen[0].row)])
            self._judge(unseen)

    # -- poll and intake

    def poll(self) -> None:
        store = self.world.store
        batch = self.world.wechat.batch(store.cursor(ACCOUNT))
        self.world.instant()
        recorded = store.record_batch(ACCOUNT, batch, self.now)
        self.world.instant()
        self._judge(list(recorded.rows))

    def _judge(self, rows: list[MessageRow]) -> None:
        for number, row in enumerate(rows):
            self.world.instant()
            text, written_at = json.loads(row.raw), (row.created_at_ms or 0) / 1000
            heard = Heard(row.row, row.who, self.now, None, "en", text, written_at=written_at)
            changes: list[Change] = [heard]
            changes += [BeginHandling(rows[number + 1].row)] if number + 1 < len(rows) else []
            self._step(row.who, PeerWrote(self.now, MORE, written_at))
            if text == "/stop":
                self.world.commit([SetMessage(row.row, MessageState.COMMAND, self.now), *changes])
                self.take(StopAsked(row.who))
            else:
                self.take(Queued(row.who, row.row), [SetMessage(row.row, MessageState.QUEUED, self.now), *changes])

    # -- scheduler

    def take(self, event: SchedulerEvent, changes: Sequence[Change] = ()) -> None:
        effects = self.scheduler.step(event, self.now)
        gathered = list(changes)
        for effect in effects:
            if isinstance(effect, Give):
                gathered.append(SetMessage(effect.row, MessageState.RUNNING, self.now, effect.generation))
                gathered.append(StartedTurn(effect.who, self.now))
            elif isinstance(effect, Start):
                gathered.append(SetGeneration(effect.who, effect.generation))
        self.world.commit(gathered)
        for effect in effects:
            self.world.instant()
            match effect:
                case Start(who, generation):
                    key = LeaseKey(who.account, who.peer, generation)
                    assert key not in self.leases
                    self.leases[key] = Lease(key, LEASE, now=self.now)
                    self.world.fork(key)
                case Give(who, generation, row):
                    key = LeaseKey(who.account, who.peer, generation)
                    lease = self.leases.get(key)
                    if lease is not None and lease.state != "gone":
                        lease.begin(TurnId(str(row)), now=self.now)
                        self.world.give(key, row)
                case Abort(who, generation, row):
                    self._with(who, generation, lambda lease, row=row: self._abort(lease, row))
                case LeaveAsked(who, generation):
                    self._with(who, generation, self._leave)
                case Close():
                    self._close(effect)
                case Tell(who, line):
                    self._tell(who, line)
                case _:
                    pass

    def _with(self, who: PeerKey, generation: Generation, act: Callable[[Lease], None]) -> None:
        lease = self.leases.get(LeaseKey(who.account, who.peer, generation))
        if lease is not None and lease.state != "gone":
            act(lease)

    def _abort(self, lease: Lease, row: int) -> None:
        lease.abort(TurnId(str(row)), within_s=STOP_S, now=self.now)
        self.world.workers[lease.key].stopped = True

    def _leave(self, lease: Lease) -> None:
        if lease.state == "idle":
            lease.leave(now=self.now)
            self.world.workers[lease.key].stage = "leaving"
        else:
            self.end(lease, GoneWhy.STOPPED)

    def _close(self, close: Close) -> None:
        change = SetMessage(close.row, close.state, self.now)
        words = notice_of(close.line, still_waiting=close.still_waiting).en if close.line is not None else None
        closing = numbered(words, size=SIZE) if words else ()
        self.ended.add(close.row)
        composer = self.composers.pop((close.who, close.row), None)
        if close.keep_text:
            room = self.boxes[close.who].room(self.now) - len(closing)
            texts = composer.rest(max(0, room)) if composer is not None else ()
            parts = self._parts(PartKind.REPLY, texts, close.row) + self._parts(PartKind.OUTCOME, closing, close.row)
            self._enqueue(close.who, parts, ends=close.row)
        else:
            self._step(close.who, TurnStopped(close.row))
            self._enqueue(close.who, self._parts(PartKind.OUTCOME, closing, close.row))
        self._commit(close.who, [change])

    def _tell(self, who: PeerKey, line: Line) -> None:
        if line is Line.NOTHING_RUNNING and self.boxes[who].parked_rest:
            self._step(who, ParkedUnwanted())
        kind = PartKind.COURTESY if line in COURTESY else PartKind.COMMAND
        self.notice(who, notice_of(line).en, kind)

    # -- pool

    def hear(self, key: LeaseKey, message: ToSupervisor) -> Word:
        lease = self.leases.get(key)
        if lease is None:
            return Word.DROPPED
        word = lease.hear(message, now=self.now)
        if word is Word.BROKEN:
            self.end(lease, GoneWhy.VIOLATION)
        elif word is Word.HEARD:
            self._heard(key, message)
        return word

    def _heard(self, key: LeaseKey, message: ToSupervisor) -> None:
        who = key.who
        match message:
            case SessionOpened():
                self.take(WorkerOpened(who, key.generation))
            case PieceMade(turn_id, _, text, boundary):
                turn = self.scheduler.turn_of(who)
                if who in self.scheduler.busy() and turn is not None and turn[0] == int(turn_id):
                    self._composer(who, int(turn_id)).piece(text, boundary, (), self.now)
            case TurnEnded(turn_id, outcome):
                had_text = self._has_text(who, int(turn_id))
                self.take(TurnReported(who, key.generation, outcome, had_text))
            case _:
                pass

    def end(self, lease: Lease, why: GoneWhy) -> None:
        """The lease ends at once; that its processes are gone is heard of later."""
        lease.end()
        self.world.kill(lease.key, why)

    def gone(self, key: LeaseKey, why: GoneWhy) -> None:
        """No process of that worker is left."""
        lease = self.leases.pop(key, None)
        if lease is None:
            return
        turn = self.scheduler.turn_of(key.who)
        had_text = turn is not None and self._has_text(key.who, turn[0])
        lease.end()
        self.take(WorkerGone(key.who, key.generation, why, had_text))

    def watch(self) -> None:
        """What the pool does about the silent and the slow, and the scheduler about time."""
        for lease in list(self.leases.values()):
            if lease.overdue(now=self.now) is not None:
                self.end(lease, GoneWhy.HUNG)
        self.take(Woke())

    # -- delivery

    def serve(self, who: PeerKey, network: str) -> bool:
        """One round of a peer's sends: stream, commit, one attempt. False: nothing to send now. network: ok, or how it fails"""
        for (peer, row), composer in list(self.composers.items()):
            if peer == who and (texts := composer.leaving(self.boxes[who].room_to_stream(self.now), self.now)):
                self._enqueue(who, self._parts(PartKind.REPLY, texts, row))
        self._step(who, OutboxWoke())
        self._commit(who, [])
        send = self.sends.pop(who, None)
        if send is None:
            return False
        self.world.instant()
        if network == "lost before":
            self._step(who, Unanswered())
        elif network == "refused":
            self._step(who, Rejected())
        else:
            taken = self.world.wechat.take(who, send.key, send.text)
            self.world.instant()
            if network == "lost after":
                self._step(who, Unanswered())
            else:
                self._step(who, Accepted(MessageId(f"s{send.key}")) if taken else Rejected())
        self._commit(who, [])
        return True

    def notice(self, who: PeerKey, words: str, kind: PartKind, changes: Sequence[Change] = ()) -> None:
        self._enqueue(who, self._parts(kind, numbered(words, size=SIZE), None))
        self._commit(who, changes)

    def _commit(self, who: PeerKey, changes: Sequence[Change]) -> None:
        batch = [*self.changes[who], *changes]
        self.changes[who].clear()
        self.world.commit(batch)

    def _composer(self, who: PeerKey, row: int) -> Composer:
        composer = self.composers.get((who, row))
        if composer is None:
            composer = self.composers[who, row] = Composer(SIZE, max_answer_chars=100_000, interim=InterimText.JOIN)
            self._step(who, TurnOpened(row))
        return composer

    def _has_text(self, who: PeerKey, row: int) -> bool:
        composer = self.composers.get((who, row))
        return composer is not None and composer.has_text

    def _parts(self, kind: PartKind, texts: Sequence[str], row: int | None) -> tuple[Part, ...]:
        return tuple(Part(self.world.mint(), kind, text, row) for text in texts)

    def _enqueue(self, who: PeerKey, parts: tuple[Part, ...], *, ends: int | None = None) -> None:
        effects = self.boxes[who].step(Enqueued(parts, ends), self.now)
        self.changes[who] += [AddPart(p.key, who, p.turn, p.kind, p.text, self.now) for p in parts]
        self._absorb(who, effects)

    def _step(self, who: PeerKey, event: OutboxEvent) -> None:
        self._absorb(who, self.boxes[who].step(event, self.now))

    def _absorb(self, who: PeerKey, effects: Sequence[OutboxEffect]) -> None:
        for effect in effects:
            match effect:
                case Send(key, _, spend):
                    self.sends[who] = effect
                    self.changes[who].append(SetPart(key, PartState.SENDING, self.now, spend))
                case Mark(key, state, spend, message_id):
                    self.changes[who].append(SetPart(key, state, self.now, spend, message_id))


class World:
    """What outlives a supervisor: the journal, WeChat, and the workers until they are gone."""

    def __init__(self, path: Path) -> None:
        self.now = 1000.0
        self.wechat = WeChat()
        self.path = path
        self.store, _ = Store.open(path)
        self.store.sign_in(ACCOUNT, "b@im.bot", "default", None, self.now)
        self.workers: dict[LeaseKey, Worker] = {}
        self.why: dict[LeaseKey, GoneWhy] = {}  # of those killed and not yet heard of
        self.reached: list[tuple[PeerKey, int]] = []  # prompts, in the order in which agents saw them
        self.spoken: dict[int, list[str]] = defaultdict(list)
        self.deaths = 0
        self._keys = 0
        self._dies_in: int | None = None
        self.supervisor = Supervisor(self)

    # -- the supervisor's life

    def instant(self) -> None:
        """A moment at which the supervisor may be killed."""
        self.now += TICK_S
        if self._dies_in is not None:
            self._dies_in -= 1
            if self._dies_in < 0:
                raise Died

    def commit(self, changes: Sequence[Change]) -> None:
        self.instant()
        if changes:
            self.store.apply(changes)
        self.instant()

    def alive(self, act: Callable[[Supervisor], object], *, dies_in: int | None = None) -> None:
        """Have the supervisor do something, and kill it after so many instants. Its next life begins at once."""
        self._dies_in = dies_in
        try:
            act(self.supervisor)
        except Died:
            self.restart()
        finally:
            self._dies_in = None

    def restart(self, *, dies_in: int | None = None) -> None:
        """Killed, with all of its workers; then started, to be killed once more after so many instants."""
        while True:
            self.deaths += 1
            self.workers.clear()
            self.why.clear()
            self.store.close()
            self.store, warnings = Store.open(self.path)
            assert warnings == ()
            self._dies_in, dies_in = dies_in, None
            try:
                self.supervisor = Supervisor(self)
                return
            except Died:
                continue
            finally:
                self._dies_in = None

    def mint(self) -> SendKey:
        self._keys += 1
        return SendKey(f"k{self._keys}")

    # -- workers

    def fork(self, key: LeaseKey) -> None:
        alive = [worker for worker in self.workers.values() if worker.key.who == key.who and worker.stage != "dead"]
        assert not alive, "one worker a peer"
        self.workers[key] = Worker(key)

    def give(self, key: LeaseKey, row: int) -> None:
        worker = self.workers[key]
        if worker.stage == "dead":
            return  # it never reads this
        assert worker.stage == "idle", worker
        worker.stage, worker.turn, worker.said, worker.stopped = "busy", row, 0, False
        self.reached.append((key.who, row))

    def kill(self, key: LeaseKey, why: GoneWhy) -> None:
        self.workers[key].stage = "dead"
        self.why.setdefault(key, why)

    def proceed(self, key: LeaseKey, what: str, *, dies_in: int | None = None) -> None:
        """A worker does its next thing. what: on, speak, crash, nonsense, or fail"""
        worker = self.workers[key]
        if worker.stage == "dead" or (what == "crash" and worker.stage != "dead"):
            why = self.why.pop(key, GoneWhy.START_FAILED if worker.stage == "forked" else GoneWhy.CRASHED)
            del self.workers[key]
            self.alive(lambda supervisor: supervisor.gone(key, why), dies_in=dies_in)
            return
        if worker.stage == "leaving":
            del self.workers[key]
            self.alive(lambda supervisor: supervisor.gone(key, GoneWhy.LEFT), dies_in=dies_in)
            return
        message = self._next(worker, what)
        self.alive(lambda supervisor: supervisor.hear(key, message), dies_in=dies_in)

    def _next(self, worker: Worker, what: str) -> ToSupervisor:
        if what == "nonsense":
            return TurnEnded(TurnId("999999"), TurnOutcome.COMPLETED, None, "")
        match worker.stage:
            case "forked":
                worker.stage = "ready"
                return Ready(VERSION, (), (), "")
            case "ready":
                worker.stage = "idle"
                return SessionOpened(SessionId("s"), OpenedHow.NEW, "agent", "1")
            case "busy" if worker.turn is not None:
                turn = TurnId(str(worker.turn))
                if what == "speak" and not worker.stopped:
                    text = f"answer {worker.turn}.{worker.said} " + "word " * (7 * (worker.said % 5))
                    worker.said += 1
                    self.spoken[worker.turn].append(text)
                    return PieceMade(turn, worker.said - 1, text, Boundary.PARAGRAPH, ())
                worker.stage, worker.turn = "idle", None
                outcome = TurnOutcome.FAILED if what == "fail" else TurnOutcome.COMPLETED
                return TurnEnded(turn, TurnOutcome.ABORTED if worker.stopped else outcome, None, "")
            case _:
                return TurnEnded(TurnId("999999"), TurnOutcome.COMPLETED, None, "")
