"""Performs core/scheduler: the one queue where all events meet.

Intake, the pool, the control socket and the clock post events; each is taken through the core, what it changes in the
journal is committed in one transaction, and only then its effects are performed, in order. A worker's words reach
delivery from here, so that a turn's last piece always comes before its end.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from protocol.ids import Generation, LeaseKey, PeerKey, TurnId
from protocol.spec import WorkerPlan
from protocol.to_supervisor import (
    Asked,
    DialogGone,
    FileOffered,
    PieceMade,
    Remarked,
    SendAsked,
    ToolUsed,
    TurnEnded,
    UsageSeen,
)
from protocol.to_worker import Grant, RunTurn
from supervisor import notices
from supervisor.clock import Clock, woken_or_due
from supervisor.core.lease import Gone, GoneWhy, Leaves, Opened, PoolEvent, Said
from supervisor.core.scheduler import (
    Abort,
    Close,
    EndTyping,
    Give,
    LeaveAsked,
    Line,
    MarkAsking,
    MarkRunning,
    Scheduler,
    SchedulerEffect,
    SchedulerEvent,
    ShowTyping,
    Start,
    StartRefused,
    Tell,
    TurnReported,
    Woke,
    WorkerGone,
    WorkerLeaves,
    WorkerOpened,
)
from supervisor.core.states import MessageState, PartKind
from supervisor.delivery import Delivery
from supervisor.grants import GrantRefused, NotIsolated
from supervisor.indicator import Indicator
from supervisor.pool import Pool, StartFailed
from supervisor.pool import StartRefused as StartsPaused
from supervisor.prompts import Prompts
from supervisor.store import (
    Bump,
    Change,
    Journal,
    JournalUnavailable,
    SetGeneration,
    SetMessage,
    SetSession,
    StartedTurn,
    Store,
)
from supervisor.usage import day_of

log = logging.getLogger(__name__)

COMMIT_RETRY_S = 1.0

COURTESY = frozenset(
    {
        Line.WAITING_OWN,
        Line.WAITING_OTHERS,
        Line.WAITING_READY,
        Line.WAITING_ROOM,
        Line.WAITING_STILL_OWN,
        Line.WAITING_STILL_OTHERS,
        Line.WAITING_STILL_READY,
        Line.STOP_HINT,
    }
)


@dataclass(frozen=True, slots=True)
class _Ordered:
    """An event of our own, with the changes that belong into the same transaction."""

    event: SchedulerEvent
    changes: tuple[Change, ...]
    after: Callable[[], None] | None


class GrantsWorkers(Protocol):
    """Says what a peer's next worker may do (grants.py)."""

    async def launch(self, who: PeerKey, generation: Generation) -> tuple[WorkerPlan, Grant]: ...

    def lacking(self, who: PeerKey) -> str:
        """The setting without which this peer's agent cannot be opened."""
        ...


class PutsQuestions(Protocol):
    """Asks peers on behalf of their workers (dialogs.py). None of it blocks."""

    def asked(self, key: LeaseKey, message: Asked) -> None: ...

    def gone(self, key: LeaseKey, message: DialogGone) -> None: ...

    def turn_over(self, who: PeerKey, row: int) -> None: ...


class TakesFiles(Protocol):
    """Takes what a worker offers (outgoing.py)."""

    async def offered(self, key: LeaseKey, turn_id: TurnId, file_id: str, caption: str) -> None: ...

    async def asked_to_send(self, key: LeaseKey, asked: SendAsked) -> None: ...


class SchedulerLoop:
    """Owns the core. Everything else asks it questions through `core`, and changes it through `post` alone."""

    def __init__(
        self,
        core: Scheduler,
        *,
        journal: Journal,
        delivery: Delivery,
        grants: GrantsWorkers,
        prompts: Prompts,
        indicator: Indicator,
        dialogs: PutsQuestions,
        files: TakesFiles | None = None,
        tasks: asyncio.TaskGroup,
        clock: Clock,
    ) -> None:
        self.core = core
        self._journal = journal
        self._delivery = delivery
        self._grants = grants
        self._prompts = prompts
        self._indicator = indicator
        self._dialogs = dialogs
        self._files = files
        self._tasks = tasks
        self._clock = clock
        self._pool: Pool | None = None
        # Unbounded on purpose: what arrives is bounded before it is posted, by the rate that a nanny lets a worker
        # speak at and by the batches that a poll may return.
        self._inbox: deque[_Ordered | PoolEvent] = deque()
        self._wake = asyncio.Event()
        self._rest: asyncio.Event = asyncio.Event()

    def attach(self, pool: Pool) -> None:
        """The pool posts here and is driven from here: the one knot of the wiring."""
        self._pool = pool

    def post(
        self, event: SchedulerEvent, changes: Sequence[Change] = (), *, after: Callable[[], None] | None = None
    ) -> None:
        """after: called once the changes are committed and the effects performed"""
        self._inbox.append(_Ordered(event, tuple(changes), after))
        self._wake.set()

    def hear(self, event: PoolEvent) -> None:
        """The pool's callback."""
        self._inbox.append(event)
        self._wake.set()

    async def until_at_rest(self) -> None:
        """Return once no turn runs."""
        while not self.core.at_rest() or self._inbox:
            self._rest.clear()
            await self._rest.wait()

    async def run(self) -> None:
        while True:
            await self._until_due()
            if not self._inbox:
                await self._take(Woke())
            while self._inbox:
                item = self._inbox.popleft()
                match item:
                    case _Ordered(event, changes, after):
                        await self._take(event, changes)
                        if after is not None:
                            after()
                    case Opened() | Said() | Leaves() | Gone():
                        await self._hear(item)
                    case _:
                        assert_never(item)
            self._rest.set()

    async def _until_due(self) -> None:
        if self._inbox:
            return
        self._wake.clear()
        await woken_or_due(self._wake, self._clock, self.core.wake_at())

    # -- what the pool says

    async def _hear(self, event: PoolEvent) -> None:
        match event:
            case Opened(key, session_id, how, agent):
                log.info(
                    "worker_opened peer=%s generation=%d agent=%s session=%s account=%s",
                    key.peer,
                    key.generation,
                    agent,
                    how,
                    key.account,
                )
                changes = [SetSession(key.who, session_id, self._clock.wall())]
                await self._take(WorkerOpened(key.who, key.generation), changes)
            case Said(key, message):
                await self._said(key, message)
            case Leaves(key):
                await self._take(WorkerLeaves(key.who, key.generation))
            case Gone(key, why, detail):
                if why not in (GoneWhy.LEFT, GoneWhy.STOPPED):
                    log.warning(
                        "worker_lost peer=%s generation=%d why=%s account=%s %s",
                        key.peer,
                        key.generation,
                        why,
                        key.account,
                        detail,
                    )
                turn = self.core.turn_of(key.who)
                had_text = turn is not None and self._delivery.has_text(key.who, turn[0])
                if turn is not None and self.core.generation_of(key.who) == key.generation:
                    self._dialogs.turn_over(key.who, turn[0])
                await self._take(WorkerGone(key.who, key.generation, why, had_text), _counted(why))
            case _:
                assert_never(event)

    async def _said(
        self,
        key: LeaseKey,
        message: PieceMade | ToolUsed | Asked | DialogGone | FileOffered | SendAsked | UsageSeen | Remarked | TurnEnded,
    ) -> None:
        match message:
            case PieceMade(turn_id, _, text, boundary, keep):
                if self._speaks(key, turn_id):
                    self._delivery.piece(key.who, int(turn_id), text, boundary, keep)
            case ToolUsed(turn_id, _, name, status):
                log.debug("tool_used peer=%s tool=%s status=%s account=%s", key.peer, name, status, key.account)
                if status == "started" and self._speaks(key, turn_id):
                    self._delivery.tool_started(key.who, int(turn_id))
            case Asked(turn_id):
                # A turn that was told to end dismisses its questions itself.
                if self.core.may_ask(key.who, int(turn_id)):
                    self._dialogs.asked(key, message)
            case DialogGone():
                self._dialogs.gone(key, message)
            case TurnEnded(turn_id, outcome, kind, detail):
                if kind is not None:
                    log.warning(
                        "turn_failed peer=%s message=%s kind=%s detail=%s account=%s",
                        key.peer,
                        turn_id,
                        kind,
                        detail,
                        key.account,
                    )
                had_text = self._delivery.has_text(key.who, int(turn_id))
                self._dialogs.turn_over(key.who, int(turn_id))
                await self._take(TurnReported(key.who, key.generation, outcome, had_text))
            case Remarked(level, text):
                log.info("agent_remarked peer=%s level=%s text=%s account=%s", key.peer, level, text, key.account)
            case FileOffered(turn_id, file_id, caption):
                if self._files is not None and self._speaks(key, turn_id):
                    await self._files.offered(key, turn_id, file_id, caption)
            case SendAsked(turn_id):
                if self._files is not None and self._speaks(key, turn_id):
                    await self._files.asked_to_send(key, message)
            case UsageSeen():
                log.debug("%s peer=%s", type(message).__name__, key.peer)
            case _:
                assert_never(message)

    def _speaks(self, key: LeaseKey, turn_id: TurnId) -> bool:
        """Is this turn still without an outcome? What a stopped one goes on to say is dropped."""
        turn = self.core.turn_of(key.who)
        return key.who in self.core.busy() and turn is not None and turn[0] == int(turn_id)

    # -- step, commit, perform

    async def _take(self, event: SchedulerEvent, changes: Sequence[Change] = ()) -> None:
        effects = self.core.step(event, self._clock.now())
        prompts: dict[int, RunTurn] = {}
        gathered = list(changes)
        for effect in effects:
            if isinstance(effect, Give):
                gathered += [
                    SetMessage(effect.row, MessageState.RUNNING, self._clock.wall(), effect.generation),
                    StartedTurn(effect.who, self._clock.wall()),
                ]
            elif isinstance(effect, MarkAsking | MarkRunning):
                state = MessageState.ASKING if isinstance(effect, MarkAsking) else MessageState.RUNNING
                gathered.append(SetMessage(effect.row, state, self._clock.wall()))
            elif isinstance(effect, Start):
                gathered += [SetGeneration(effect.who, effect.generation), Bump("workers_started")]
        for effect in effects:
            if isinstance(effect, Give):  # before StartedTurn clears what the prompt tells of an interrupted turn
                prompts[effect.row] = RunTurn(
                    TurnId(str(effect.row)), await self._prompts.build(effect.who, effect.row)
                )
        await self._commit(gathered)
        for effect in effects:
            await self._perform(effect, prompts)

    async def _commit(self, changes: Sequence[Change]) -> None:
        """The core has moved already, so the journal has to follow: tried again each second while the disk refuses."""
        while changes:
            try:
                await self._journal.do(Store.apply, changes)
                return
            except JournalUnavailable as error:
                log.error("journal_unavailable reason=%s", error)
                await self._clock.sleep_until(self._clock.now() + COMMIT_RETRY_S)

    async def _perform(self, effect: SchedulerEffect, prompts: dict[int, RunTurn]) -> None:
        pool = self._the_pool()
        match effect:
            case Start(who, generation):
                log.debug("worker_starting peer=%s generation=%d account=%s", who.peer, generation, who.account)
                self._tasks.create_task(self._start(who, generation), name=f"start {who.peer}")
            case Give(who, generation, row):
                log.info(
                    "turn_started peer=%s message=%d generation=%d account=%s", who.peer, row, generation, who.account
                )
                pool.give(_key(who, generation), prompts[row])
            case Abort(who, generation, row):
                self._dialogs.turn_over(who, row)
                pool.abort(_key(who, generation), TurnId(str(row)))
            case LeaveAsked(who, generation):
                pool.leave(_key(who, generation))
            case Close():
                await self._close(effect)
            case Tell(who, line):
                await self._tell(who, line)
            case MarkAsking(who) | MarkRunning(who):
                pass  # committed above
            case ShowTyping(who):
                self._indicator.show(who)
            case EndTyping(who):
                self._indicator.end(who)
            case _:
                assert_never(effect)

    async def _start(self, who: PeerKey, generation: Generation) -> None:
        try:
            plan, grant = await self._grants.launch(who, generation)
            await self._the_pool().start(_key(who, generation), plan, grant)
        except NotIsolated as error:
            log.error(
                "worker_not_started peer=%s generation=%d reason=%s account=%s",
                who.peer,
                generation,
                error,
                who.account,
            )
            self.post(WorkerGone(who, generation, GoneWhy.LAYER_MISSING))
        except (StartFailed, GrantRefused) as error:
            log.warning(
                "worker_not_started peer=%s generation=%d reason=%s account=%s",
                who.peer,
                generation,
                error,
                who.account,
            )
            self.post(StartRefused(who, generation, paused=isinstance(error, StartsPaused)))

    async def _close(self, close: Close) -> None:
        log.info(
            "message_closed peer=%s message=%d state=%s account=%s",
            close.who.peer,
            close.row,
            close.state,
            close.who.account,
        )
        change = SetMessage(close.row, close.state, self._clock.wall())
        notice = None
        if close.line is Line.TOKEN_BUDGET:
            notice = notices.token_budget(wait_s=day_of(self._clock.wall()).ends_at - self._clock.wall())
        elif close.line is Line.NOT_CONFIGURED:
            notice = notices.not_configured(self._grants.lacking(close.who))
        elif close.line is not None:
            notice = notice_of(close.line, still_waiting=close.still_waiting)
        finish = self._delivery.finish if close.keep_text else self._delivery.abandon
        await self._until_recorded(lambda: finish(close.who, close.row, notice=notice, extra=[change]))

    async def _tell(self, who: PeerKey, line: Line) -> None:
        if line is Line.NOTHING_RUNNING and self._delivery.parked_rest(who):
            await self._until_recorded(lambda: self._delivery.drop_parked(who))
            return
        kind = PartKind.COURTESY if line in COURTESY else PartKind.COMMAND
        await self._until_recorded(lambda: self._delivery.notice(who, notice_of(line), kind))

    async def _until_recorded(self, call: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await call()
                return
            except JournalUnavailable as error:
                log.error("journal_unavailable reason=%s", error)
                await self._clock.sleep_until(self._clock.now() + COMMIT_RETRY_S)

    def _the_pool(self) -> Pool:
        if self._pool is None:
            raise RuntimeError("the scheduler runs before its pool is attached")
        return self._pool


def notice_of(line: Line, *, still_waiting: int = 0) -> notices.Notice:
    """The words that go with a line of the core. TOKEN_BUDGET names a time, and is worded where it is known."""
    match line:
        case Line.TOKEN_BUDGET:
            return notices.token_budget(wait_s=0.0)
        case Line.WAITING_OWN:
            return notices.waiting_behind_own()
        case Line.WAITING_OTHERS:
            return notices.waiting_behind_others()
        case Line.WAITING_READY:
            return notices.waiting_for_start()
        case Line.WAITING_ROOM:
            return notices.waiting_for_room()
        case Line.WAITING_STILL_OWN:
            return notices.still_waiting_behind_own()
        case Line.WAITING_STILL_OTHERS:
            return notices.still_waiting_behind_others()
        case Line.WAITING_STILL_READY:
            return notices.still_waiting_for_start()
        case Line.STOP_HINT:
            return notices.still_working()
        case Line.STOPPED:
            return notices.stopped(waiting=still_waiting)
        case Line.NOTHING_RUNNING:
            return notices.nothing_running()
        case Line.EMPTY:
            return notices.empty()
        case Line.FAILED:
            return notices.failed()
        case Line.BROKE_OFF:
            return notices.broke_off()
        case Line.TIMED_OUT:
            return notices.timed_out()
        case Line.TOOK_TOO_MUCH:
            return notices.took_too_much()
        case Line.DECLINED:
            return notices.declined()
        case Line.LIMITED:
            return notices.limited()
        case Line.NOT_STARTED:
            return notices.not_started()
        case Line.STARTS_PAUSED:
            return notices.starts_paused()
        case Line.NOT_CONFIGURED:
            return notices.not_configured("agent.command")
        case Line.NOT_ISOLATED:
            return notices.not_isolated()
    assert_never(line)


def _key(who: PeerKey, generation: Generation) -> LeaseKey:
    return LeaseKey(who.account, who.peer, generation)


def _counted(why: GoneWhy) -> tuple[Change, ...]:
    match why:
        case GoneWhy.LEFT | GoneWhy.STOPPED:
            return ()
        case GoneWhy.VIOLATION:
            return (Bump("protocol_violations"), Bump("workers_crashed"))
        case _:
            return (Bump("workers_crashed"),)
