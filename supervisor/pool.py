"""Has workers started, watches them, stops them and reaps them: performs core/lease and core/starts.

In come orders (start, give, abort, answer, leave, kill), what the router hears, and the ends of processes; out come
PoolEvents, through one callback. A worker's Gone is emitted exactly once, when no process of its tree is left and all
that it still said has been heard. Which worker is wanted when is the scheduler's to say.

Worker processes are the launcher's, their words the router's. The pool checks what a Ready claims against what the
kernel says of that process before it hands the Grant over.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import FailureKind, ProtocolViolation
from protocol.ids import LeaseKey, PeerKey, TurnId
from protocol.spec import LAYER_FAILED, Layer, NetworkMode, WorkerPlan
from protocol.to_supervisor import (
    Asked,
    DialogGone,
    FileOffered,
    FormBroken,
    FromNanny,
    Leaving,
    LimitPassed,
    OpenFailed,
    PieceMade,
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
from protocol.to_worker import AbortTurn, AnswerDialog, FileSettled, Grant, Leave, RunTurn, ToWorker
from supervisor import platform
from supervisor.clock import Clock
from supervisor.core.lease import (
    Gone,
    GoneWhy,
    Lease,
    LeaseState,
    Leaves,
    Limits,
    Opened,
    PoolEvent,
    Said,
    Watch,
    Word,
)
from supervisor.core.starts import Starts
from supervisor.isolation import limit_kinds
from supervisor.launcher import Launched, Launcher
from supervisor.launcher import StartFailed as StartFailed
from supervisor.launcher import Zygote as Zygote
from supervisor.router import Lost, Router

log = logging.getLogger(__name__)

TICK_S = 1.0  # a watch is late by at most this
AWAY_S = 2.0  # a loop that was away for longer judges nobody for it
STOP_SLACK_S = 1.0  # the worker ends its agent program itself at stop_grace_s; its report has so long to come
DETAIL_CHARS = 300


class StartRefused(StartFailed):
    """By the crash-loop rule. retry_in_s None: until the operator's reload, or a trial that succeeds."""

    def __init__(self, reason: str, retry_in_s: float | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_in_s = retry_in_s


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker, as `status` shows it.

    pid         the worker's; its nanny's until it is known
    reaches     the network it has in fact, once it is known
    limits      what holds it, by name: see isolation.limit_kinds
    rss_bytes   resident, of the whole tree; a page that several processes share is counted in each
    """

    key: LeaseKey
    state: LeaseState
    pid: int
    nanny_pid: int
    layers: tuple[Layer, ...]
    missing: tuple[Layer, ...]
    reaches: NetworkMode
    limits: Mapping[str, str]
    idle_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerTree:
    """One worker's processes and folders, for those who watch what it takes."""

    key: LeaseKey
    nanny_pid: int
    state: LeaseState
    idle_s: float
    session_dir: str
    workspace: str


@dataclass(slots=True)
class _Held:
    """One worker from its start to its end. why: the first reason known to end it."""

    lease: Lease
    plan: WorkerPlan
    grant: Grant
    idle_since: float
    asked_at: float
    nanny: Launched | None = None
    worker_pid: int | None = None
    layers: tuple[Layer, ...] = ()
    missing: tuple[Layer, ...] = ()
    reaches: NetworkMode | None = None
    why: GoneWhy | None = None
    detail: str = ""
    leaving: str = ""  # its own reason
    code: int | None = None
    was_ready: bool = False


class Pool:
    """run() is its life; close() leaves no process behind and ends run(). All calls from one loop.

    zygote  where workers run; another launcher would do
    """

    def __init__(
        self,
        limits: Limits,
        zygote: Launcher,
        router: Router,
        clock: Clock,
        on_event: Callable[[PoolEvent], None],
        *,
        starts: Starts | None = None,
    ) -> None:
        self._limits = limits
        self._launcher = zygote
        self._router = router
        self._clock = clock
        self._on_event = on_event
        self._starts = starts or Starts()
        self._held: dict[LeaseKey, _Held] = {}
        self._left = asyncio.Event()  # set, and made anew, whenever a worker is gone
        self._empty = asyncio.Event()
        self._empty.set()
        self._tasks: asyncio.TaskGroup | None = None
        self._running = asyncio.Event()
        self._closing = asyncio.Event()
        self.violations = 0
        router.attach(self.hear)

    async def run(self) -> None:
        """Until close(). Whatever a worker does ends here as an event; an exception is a bug of ours."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            watching = tasks.create_task(self._watch(), name="pool watch")
            self._running.set()
            await self._closing.wait()
            await self._empty.wait()
            watching.cancel()

    @property
    def stopped(self) -> bool:
        """The crash-loop rule has stopped all starts."""
        return self._starts.stopped

    def paused(self) -> dict[PeerKey, float]:
        """Peers whose starts the crash-loop rule has paused, and for how many seconds more."""
        return self._starts.paused(now=self._clock.now())

    def reopen(self) -> None:
        """After a reload, or a trial worker that came up."""
        self._starts.reopen()

    async def until_gone(self, who: PeerKey) -> None:
        """Return once no worker of this peer is left, nor anything of its tree."""
        while any(key.who == who for key in self._held):
            await self._left.wait()

    # -- orders

    async def start(self, key: LeaseKey, plan: WorkerPlan, grant: Grant) -> None:
        """On return the worker is under way; Opened or Gone follows. raises StartRefused, StartFailed: neither follows"""
        now = self._clock.now()
        refusal = self._starts.refusal(key.who, now=now)
        if refusal is not None:
            raise StartRefused(refusal.reason, refusal.retry_in_s)
        await self._running.wait()
        if self._tasks is None or self._closing.is_set():
            raise StartFailed("the bridge is stopping")
        held = _Held(Lease(key, self._limits, now=now, sends=grant.sends), plan, grant, idle_since=now, asked_at=now)
        self._held[key] = held
        self._empty.clear()
        try:
            nanny = await self._launcher.launch(plan)
        except BaseException:
            self._forget(key)
            raise
        held.nanny = nanny
        self._tasks.create_task(self._tend(held, nanny), name=f"worker {key.peer} {key.generation}")
        if held.why is not None:  # killed while it was being forked
            nanny.kill()
            return
        nanny.hand_over(self._router.register(key, nanny.pid))

    def give(self, key: LeaseKey, turn: RunTurn) -> None:
        """Of a worker that is gone or goes meanwhile, Gone tells. raises RuntimeError unless it is idle"""
        held = self._held.get(key)
        if held is None or held.lease.state is LeaseState.GONE:
            return
        held.lease.begin(turn.turn_id, now=self._clock.now())
        self._say(held, turn)

    def abort(self, key: LeaseKey, turn_id: TurnId) -> None:
        """A worker that has not ended this turn a second after its grace is killed: Gone, STOPPED."""
        held = self._held.get(key)
        if held is None or held.lease.turn != turn_id:
            return
        held.lease.abort(turn_id, within_s=held.grant.stop_grace_s + STOP_SLACK_S, now=self._clock.now())
        self._say(held, AbortTurn(turn_id))

    def answer(self, key: LeaseKey, answer: AnswerDialog) -> None:
        held = self._held.get(key)
        if held is not None and held.lease.turn == answer.turn_id:
            self._say(held, answer)

    def settle(self, key: LeaseKey, settled: FileSettled) -> None:
        """A word on an offered file; of a turn that is over nobody wants to hear."""
        held = self._held.get(key)
        if held is not None and held.lease.turn == settled.turn_id:
            self._say(held, settled)

    def leave(self, key: LeaseKey) -> None:
        """Orderly where the worker is idle; one that is not, or stays, is killed."""
        held = self._held.get(key)
        if held is None or held.lease.state in (LeaseState.LEAVING, LeaseState.GONE):
            return
        if held.lease.state is not LeaseState.IDLE:
            self.kill(key, GoneWhy.STOPPED)
            return
        held.lease.leave(now=self._clock.now())
        if not held.leaving:  # else it goes already, and may not hear us
            self._say(held, Leave())

    def kill(self, key: LeaseKey, why: GoneWhy, detail: str = "") -> None:
        """Its lease ends now, the tree within milliseconds: Gone follows."""
        held = self._held.get(key)
        if held is not None:
            self._end(held, why, detail)

    async def views(self) -> dict[PeerKey, WorkerView]:
        """A peer's newest worker."""
        now = self._clock.now()
        held = [one for one in self._held.values() if one.nanny is not None]
        pids = [one.nanny.pid for one in held if one.nanny is not None]
        sizes = await asyncio.to_thread(lambda: [platform.tree_rss_bytes(pid) for pid in pids])
        found: dict[PeerKey, WorkerView] = {}
        for one, pid, size in zip(held, pids, sizes, strict=True):
            found[one.lease.key.who] = WorkerView(
                key=one.lease.key,
                state=one.lease.state,
                pid=one.worker_pid or pid,
                nanny_pid=pid,
                layers=one.layers,
                missing=one.missing,
                reaches=one.reaches or one.plan.network,
                limits=limit_kinds(one.layers, one.reaches or one.plan.network),
                idle_s=0.0 if one.lease.state is LeaseState.BUSY else now - one.idle_since,
                rss_bytes=size,
            )
        return found

    def trees(self) -> list[WorkerTree]:
        """All that has been forked and is not gone."""
        now = self._clock.now()
        return [
            WorkerTree(
                key=one.lease.key,
                nanny_pid=one.nanny.pid,
                state=one.lease.state,
                idle_s=now - one.idle_since,
                session_dir=one.plan.session_dir,
                workspace=one.plan.workspace,
            )
            for one in self._held.values()
            if one.nanny is not None
        ]

    async def close(self) -> None:
        """Idle workers leave, others are killed; then the zygote ends. On return nothing is left."""
        self._closing.set()
        for key in list(self._held):
            self.leave(key)
        try:
            async with asyncio.timeout(self._limits.leave_s):
                await self._empty.wait()
        except TimeoutError:
            pass
        finally:
            for key in list(self._held):
                self.kill(key, GoneWhy.STOPPED)
        await self._empty.wait()
        self._launcher.close()

    # -- what workers say

    def hear(self, key: LeaseKey, message: ToSupervisor | ProtocolViolation) -> None:
        """The router's callback."""
        held = self._held.get(key)
        if held is None:
            return
        if isinstance(message, (WorkerExited, FormBroken, LimitPassed)):
            self._hear_last(held, message)
            return
        if isinstance(message, ProtocolViolation):
            self._break(held, str(message))
            return
        match held.lease.hear(message, now=self._clock.now()):
            case Word.HEARD:
                self._take(held, message)
            case Word.DROPPED:
                pass
            case Word.BROKEN:
                self._break(held, held.lease.reason)

    def _take(self, held: _Held, message: ToSupervisor) -> None:
        """What its lease allowed."""
        key = held.lease.key
        match message:
            case Ready(layers=layers, missing=missing, network=network):
                self._welcome(held, layers, missing, network)
            case SessionOpened(session_id=session_id, how=how, agent_name=name, agent_version=version):
                held.idle_since = self._clock.now()
                self._on_event(Opened(key, session_id, how, f"{name} {version}".strip()))
            case OpenFailed(kind=kind, detail=detail):
                why = GoneWhy.NOT_CONFIGURED if kind is FailureKind.NOT_CONFIGURED else GoneWhy.OPEN_FAILED
                self._end(held, why, f"{kind.value}: {detail}")
            case Leaving(reason=reason):
                held.leaving = reason
                self._on_event(Leaves(key))
            case TurnEnded():
                held.idle_since = self._clock.now()
                self._on_event(Said(key, message))
            case (
                PieceMade()
                | ToolUsed()
                | Asked()
                | DialogGone()
                | FileOffered()
                | SendAsked()
                | UsageSeen()
                | Remarked()
            ):
                self._on_event(Said(key, message))
            case _:
                pass  # a Pulse; the lease has noted it

    def _hear_last(self, held: _Held, message: FromNanny) -> None:
        """The nanny's own words: heard in every state, for they say why the tree is gone. It waits until we have heard."""
        match message:
            case WorkerExited(code=code):
                held.code = code
            case LimitPassed(limit=limit, detail=detail):
                self._note(held, GoneWhy.LIMIT, f"{limit.value} {detail}")
            case FormBroken(reason=reason):
                self.violations += held.why is None
                self._note(held, GoneWhy.VIOLATION, reason)
        if held.nanny is not None:
            held.nanny.kill()

    def _welcome(self, held: _Held, layers: tuple[str, ...], missing: tuple[str, ...], network: str) -> None:
        """It says that it is sandboxed. Ask the kernel, then hand the Grant over."""
        assert held.nanny is not None
        try:
            claimed = frozenset(Layer(name) for name in layers)
            lost = frozenset(Layer(name) for name in missing)
            held.reaches = NetworkMode(network) if network else held.plan.network
        except ValueError:
            self._break(held, "a layer or a network that does not exist")
            return
        held.was_ready = True
        held.worker_pid = _first_child(held.nanny.pid)
        untrue = untrue_layers(_proc_status(held.worker_pid), claimed, uid=held.plan.uid)
        held.layers = tuple(layer for layer in Layer if layer in claimed - untrue)
        held.missing = tuple(layer for layer in Layer if layer in lost | untrue)
        lacking = [layer.value for layer in held.plan.required if layer not in held.layers]
        if lacking:
            self._died_early(held.lease.key)
            self._end(held, GoneWhy.LAYER_MISSING, " ".join(lacking))
            return
        key, after_ms = held.lease.key, (self._clock.now() - held.asked_at) * 1000
        log.info(
            "worker_ready peer=%s generation=%d after_ms=%.1f account=%s",
            key.peer,
            key.generation,
            after_ms,
            key.account,
        )
        self._say(held, held.grant)

    def _break(self, held: _Held, rule: str) -> None:
        self.violations += 1
        self._end(held, GoneWhy.VIOLATION, rule)

    def _say(self, held: _Held, message: ToWorker) -> None:
        """A worker that cannot be told anything is of no use: it is ended, and Gone has its work done over."""
        try:
            self._router.send(held.lease.key, message)
        except Lost as error:
            self._end(held, GoneWhy.CRASHED, str(error))

    # -- ends

    def _end(self, held: _Held, why: GoneWhy, detail: str) -> None:
        self._note(held, why, detail)
        held.lease.end()
        if held.nanny is not None:
            held.nanny.kill()

    @staticmethod
    def _note(held: _Held, why: GoneWhy, detail: str) -> None:
        """The first reason stands."""
        if held.why is None:
            held.why = why
            held.detail = detail

    async def _tend(self, held: _Held, nanny: Launched) -> None:
        """One worker's end."""
        await nanny.exited()
        key = held.lease.key
        before_ready = not held.was_ready
        self._explain(held)
        assert held.why is not None
        if before_ready and held.why in (GoneWhy.START_FAILED, GoneWhy.LAYER_MISSING):
            self._died_early(key)
        self._forget(key)
        detail = " ".join(held.detail[:DETAIL_CHARS].split())
        log.info("worker_gone peer=%s generation=%d why=%s account=%s", key.peer, key.generation, held.why, key.account)
        self._on_event(Gone(key, held.why, detail))

    def _died_early(self, key: LeaseKey) -> None:
        if self._starts.died(key.who, now=self._clock.now()):
            stopped = self._starts.stopped
            log.error("crash_loop_began peer=%s all_starts_stopped=%s account=%s", key.peer, stopped, key.account)

    @staticmethod
    def _explain(held: _Held) -> None:
        """Nobody ended it: what its own last words make of it."""
        if held.why is not None:
            return
        left = held.lease.state is LeaseState.LEAVING or (held.lease.state is LeaseState.IDLE and held.leaving)
        if held.code == LAYER_FAILED and not held.was_ready:
            held.why = GoneWhy.LAYER_MISSING
        elif not held.was_ready:
            held.why = GoneWhy.START_FAILED
        elif left:
            held.why = GoneWhy.LEFT
        else:
            held.why = GoneWhy.CRASHED
        ending = "its nanny ended" if held.code is None else f"exit {held.code}"
        held.detail = f"{ending} {held.leaving}"

    def _forget(self, key: LeaseKey) -> None:
        self._router.revoke(key)
        self._held.pop(key).lease.end()
        self._left.set()
        self._left = asyncio.Event()
        if not self._held:
            self._empty.set()

    # -- watches

    async def _watch(self) -> None:
        """One task for all: it looks at whoever is overdue, at least every TICK_S."""
        while True:
            due = [at for held in self._held.values() if (at := held.lease.wake_at()) is not None]
            before = self._clock.now()
            wake = min([before + TICK_S, *due])
            await self._clock.sleep_until(wake)
            now = self._clock.now()
            if now - max(wake, before) > AWAY_S:
                for held in self._held.values():
                    held.lease.rearm(now=now)
            elif self._router.read():  # what is there has been heard, so that silence is silence
                self._judge(now)

    def _judge(self, now: float) -> None:
        for held in list(self._held.values()):
            match held.lease.overdue(now=now):
                case None:
                    pass
                case Watch.READY:
                    self._end(held, GoneWhy.START_FAILED, "not ready in time")
                case Watch.OPEN:
                    self._end(held, GoneWhy.OPEN_FAILED, "timeout: the agent program did not open")
                case Watch.HANG:
                    self._end(held, GoneWhy.HUNG, "silent")
                case Watch.STOP:
                    self._end(held, GoneWhy.STOPPED, "did not end its turn")
                case Watch.LEAVE:
                    self._end(held, GoneWhy.STOPPED, "did not leave")


# --- what the kernel says -------------------------------------------------------------------------------------


def untrue_layers(status: dict[str, str] | None, claimed: frozenset[Layer], *, uid: int | None) -> frozenset[Layer]:
    """Claimed layers that /proc/<worker>/status contradicts. status None: this system does not tell."""
    if status is None:
        return frozenset()
    contradicted = {
        Layer.NO_NEW_PRIVS: status.get("NoNewPrivs") != "1" or int(status.get("CapEff", "0"), 16) != 0,
        Layer.SECCOMP: status.get("Seccomp") != "2",
        Layer.PID_NS: len(status.get("NSpid", "").split()) < 2,
        Layer.OWN_UID: set(status.get("Uid", "").split()) != {str(uid)},
    }
    return frozenset(layer for layer, is_untrue in contradicted.items() if is_untrue) & claimed


def _proc_status(pid: int | None) -> dict[str, str] | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _first_child(pid: int) -> int | None:
    """A nanny's first child is its worker; the kernel lists them in the order in which it got them."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return None
    return int(listed[0]) if listed else None
