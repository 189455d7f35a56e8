"""Serves one peer: opens the agent's session, performs core/turn for each RunTurn, leaves when told.

In come the supervisor's messages over the link, and the host's events; out go SessionOpened, pieces and TurnEnded.
entry.py calls serve() once the worker is sandboxed. One loop waits for whatever comes first: a message, the end of the
opening, the end of the turn, the end of the agent program. Only the turn's own task sends while a turn runs, so a
supervisor that reads slowly slows the agent down, but never keeps an abort from being heard.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, cast

from protocol.agents import tools_of
from protocol.content import Access, Prompt
from protocol.errors import FailureKind
from protocol.ids import TurnId
from protocol.to_supervisor import (
    RULE_CHARS,
    Asked,
    Boundary,
    DialogOption,
    FromWorker,
    Leaving,
    OpenFailed,
    Remarked,
    SessionOpened,
    ToolUsed,
    TurnOutcome,
    UsageSeen,
)
from protocol.to_supervisor import DialogGone as DialogGoneMessage
from protocol.to_supervisor import FileOffered as FileOfferedMessage
from protocol.to_supervisor import SendAsked as SendAskedMessage
from protocol.to_supervisor import TurnEnded as TurnEndedMessage
from protocol.to_worker import AbortTurn, AnswerDialog, FileSettled, Grant, Leave, RunTurn, ToWorker
from worker import hosts
from worker.core.turn import (
    AbortAsked,
    AbortHost,
    Answered,
    AnswerHost,
    HostEnded,
    LeaveHost,
    Paused,
    Send,
    Told,
    Turn,
    TurnEffect,
    TurnEvent,
    TurnState,
    Woke,
    Wrote,
)
from worker.hosts.base import (
    AgentEvent,
    AgentRemarked,
    AgentSession,
    BoundaryReason,
    DialogAsked,
    DialogGone,
    FileOffered,
    HostError,
    Opened,
    PlanChanged,
    SendAsked,
    SessionSpec,
    TextBoundary,
    TextDelta,
    ToolActivity,
    ToolServer,
    TurnEnded,
)
from worker.hosts.base import UsageSeen as HostUsage
from worker.voice import made_audible
from worker.workspace import Answer, Offer, Outbox

OUTBOX_LOOK_S = 0.25
CLOSE_S = 6.0  # a host closes in 5 s; the nanny's kill stands behind it
NAME_CHARS = 128  # of a tool's name or call id
BODY_CHARS = 32 * 1024  # of a dialog's text: a plan is long
LINE_CHARS = 200  # of a title, or of an agent's remark


class Pace(Enum):
    """Whether the link sends pulses."""

    BUSY = "busy"
    IDLE = "idle"


class Link(Protocol):
    """The worker's end of the socketpair, as far as a turn needs it."""

    async def receive(self) -> ToWorker | None:
        """None: the supervisor's side is gone."""
        ...

    async def send(self, message: FromWorker) -> None:
        """Waits while the other side does not read."""
        ...

    def pace(self, pace: Pace) -> None: ...


async def serve(link: Link, grant: Grant, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Until told to leave, the link ends, or the agent program is gone. The host is closed on return."""
    try:
        session = hosts.make(grant.agent.host)
    except KeyError:
        await link.send(OpenFailed(FailureKind.NOT_CONFIGURED, f"no such host: {grant.agent.host[:NAME_CHARS]}"))
        return
    async with asyncio.TaskGroup() as tasks:
        service = _Service(link, grant, session, tasks, clock)
        try:
            await service.run()
        finally:
            service.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await session.close()


@dataclass(slots=True)
class _Running:
    turn_id: TurnId
    core: Turn
    task: asyncio.Task[None]


class _Service:
    """Waits, and hands each thing that happens to where it belongs."""

    def __init__(
        self,
        link: Link,
        grant: Grant,
        session: AgentSession,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], float],
    ) -> None:
        self._link = link
        self._grant = grant
        self._session = session
        self._tasks = tasks
        self._clock = clock
        self._running: _Running | None = None
        self._broken = False  # a host that raised cannot be trusted with another turn
        self._leaving = False
        self._outbox = Outbox(Path(grant.session_dir))
        self._owned: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        self._link.pace(Pace.BUSY)
        received = self._start(self._link.receive(), "receive")
        if not await self._open(received):
            return
        self._link.pace(Pace.IDLE)
        gone = self._start(self._session.gone.wait(), "agent gone")
        while True:
            waiting: set[asyncio.Task[Any]] = {received, self._running.task if self._running else gone}
            await asyncio.wait(waiting, timeout=self._wait_s(), return_when=asyncio.FIRST_COMPLETED)
            if self._running is not None and self._running.task.done():
                self._running.task.result()
                self._running = None
                self._link.pace(Pace.IDLE)
            if self._running is None and (self._broken or self._session.gone.is_set()):
                await self._say_leaving("the agent program has ended")
                return
            if self._running is not None and await self._give_up(self._running):
                return
            if received.done():
                message = received.result()
                if message is None or isinstance(message, Leave):
                    return
                await self._hear(message)
                received = self._start(self._link.receive(), "receive")

    def stop(self) -> None:
        for task in self._owned:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self._tasks.create_task(work, name=name)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)
        return task

    def _wait_s(self) -> float | None:
        at = self._running.core.wake_at() if self._running else None
        return None if at is None else max(0.0, at - self._clock())

    async def _open(self, received: asyncio.Task[ToWorker | None]) -> bool:
        """Open the session while listening for Leave. The supervisor watches how long it takes."""
        opening = self._start(self._try_open(), "open")
        await asyncio.wait({opening, received}, return_when=asyncio.FIRST_COMPLETED)
        if received.done() and (received.result() is None or isinstance(received.result(), Leave)):
            return False
        await asyncio.wait({opening})  # anything else that came too early waits for the loop
        opened: Opened | HostError = opening.result()
        if isinstance(opened, HostError):
            await self._link.send(OpenFailed(opened.kind, opened.detail))
            return False
        traits = self._session.traits
        await self._link.send(
            SessionOpened(
                opened.session_id, opened.how, _line(traits.name, NAME_CHARS), _line(traits.version, NAME_CHARS)
            )
        )
        return True

    async def _try_open(self) -> Opened | HostError:
        self._outbox.clear()
        try:
            return await self._session.open(_session_spec(self._grant))
        except HostError as error:
            return error
        except Exception as error:
            return HostError(FailureKind.OTHER, type(error).__name__)

    async def _hear(self, message: ToWorker) -> None:
        running = self._running
        match message:
            case RunTurn(turn_id=turn_id, prompt=prompt):
                if running is not None:
                    return  # the supervisor gives one turn at a time; a second one would mix two answers
                core = Turn(turn_id, stop_grace_s=self._grant.stop_grace_s)
                self._link.pace(Pace.BUSY)
                task = self._start(self._perform_turn(turn_id, prompt, core), "turn")
                self._running = _Running(turn_id, core, task)
            case AbortTurn(turn_id=turn_id):
                if running is not None and running.turn_id == turn_id:
                    await self._perform(running.core.step(AbortAsked(), self._clock()))
            case AnswerDialog(turn_id=turn_id, dialog_id=dialog_id, answer=answer):
                if running is not None and running.turn_id == turn_id:
                    await self._perform(running.core.step(Answered(dialog_id, answer), self._clock()))
            case FileSettled(file_id=file_id, ok=ok, detail=detail, state=state):
                self._outbox.settle(file_id, Answer(ok, detail, state))
            case Grant() | Leave():
                pass  # entry.py has read the only Grant; Leave ends the loop

    async def _give_up(self, running: _Running) -> bool:
        """True: the host has let its time run out, and the worker must leave."""
        effects = running.core.step(Woke(), self._clock())
        if not effects:
            return False
        running.task.cancel()
        await asyncio.wait({running.task})
        await self._perform(effects)
        return True

    async def _perform_turn(self, turn_id: TurnId, prompt: Prompt, core: Turn) -> None:
        """The turn's own task: host events in, messages out, until the core has ended."""
        for late in self._outbox.look():
            self._outbox.settle(late.file_id, Answer(False, "its turn was over", "refused"))
        looking = self._start(self._look_into_outbox(turn_id, core), "outbox")
        try:
            prompt = await made_audible(prompt, Path(self._grant.media_dir), Path(self._grant.session_dir))
            async with aclosing(cast(Any, self._session.turn(prompt))) as events:
                async for event in cast(AsyncIterator[AgentEvent], events):
                    if isinstance(event, ToolActivity | TurnEnded):
                        await self._offer(turn_id, core)
                    for step in _translated(turn_id, event):
                        await self._perform(core.step(step, self._clock()))
        except Exception as error:
            # The turn boundary: whatever a host or its library raises costs this turn, not the worker. Its text may
            # hold the peer's words, so that only its class is told.
            self._broken = True
            broken = HostEnded(TurnOutcome.FAILED, FailureKind.OTHER, type(error).__name__)
            await self._perform(core.step(broken, self._clock()))
        finally:
            looking.cancel()
        if core.state is not TurnState.ENDED:
            self._broken = True
            silent = HostEnded(TurnOutcome.FAILED, FailureKind.PROTOCOL, "the host ended the turn without saying so")
            await self._perform(core.step(silent, self._clock()))

    async def _look_into_outbox(self, turn_id: TurnId, core: Turn) -> None:
        """A tool of a program of its own waits for its answer, and its agent says nothing meanwhile."""
        while core.state is not TurnState.ENDED:
            await asyncio.sleep(OUTBOX_LOOK_S)
            await self._offer(turn_id, core)

    async def _offer(self, turn_id: TurnId, core: Turn) -> None:
        for offer in self._outbox.look():
            for step in _translated(turn_id, _offered(offer)):
                if core.state is not TurnState.ENDED:
                    await self._perform(core.step(step, self._clock()))

    async def _perform(self, effects: tuple[TurnEffect, ...]) -> None:
        for effect in effects:
            match effect:
                case Send(message):
                    if isinstance(message, TurnEndedMessage) and (self._broken or self._session.gone.is_set()):
                        await self._say_leaving("the agent program has ended")
                    await self._link.send(message)
                case AnswerHost(dialog_id, answer):
                    await self._session.answer(dialog_id, answer)
                case AbortHost():
                    await self._session.abort()
                case LeaveHost():
                    await self._say_leaving("the agent did not stop")

    async def _say_leaving(self, reason: str) -> None:
        """Ahead of the turn's end, so that nobody gives this worker another turn in between."""
        if not self._leaving:
            self._leaving = True
            await self._link.send(Leaving(reason))


def _tool_servers(grant: Grant) -> tuple[ToolServer, ...]:
    """`send_file` and `send`, where this session has them: a small program beside the agent, with the worker's rights."""
    narrowed = None if grant.tools is None else frozenset(grant.tools)
    mine = sorted(tools_of(grant.access, grant.sends, narrowed) & {"send_file", "send"})
    if not mine:
        return ()
    here = str(Path(__file__).parent.parent)
    program = f"import sys; sys.path.insert(0, {here!r}); from worker.offer import main; main()"
    return (ToolServer("bridge", sys.executable, ("-I", "-c", program, *mine, grant.session_dir, grant.workspace)),)


def _session_spec(grant: Grant) -> SessionSpec:
    return SessionSpec(
        session_dir=Path(grant.session_dir),
        # At `chat` the workspace is out of reach: the agent starts where its worker did (sandbox/plan.py, works_in).
        workspace=Path(grant.session_dir if grant.access is Access.CHAT else grant.workspace),
        session_id=grant.session_id,
        access=grant.access,
        agent=grant.agent.host,
        sends=grant.sends,
        command=grant.agent.command,
        env=tuple(sorted(grant.agent.env.items())),
        model=grant.agent.model,
        contract=grant.contract,
        tools=None if grant.tools is None else frozenset(grant.tools),
        stop_grace_s=grant.stop_grace_s,
        gateway_url=grant.gateway_url,
        token=grant.token,
        proxy_url=grant.proxy_url,
        rules=grant.rules,
        thinking=grant.agent.thinking,
        approvals=grant.agent.approvals,
        tool_servers=_tool_servers(grant),
    )


def _offered(offer: Offer) -> FileOffered | SendAsked:
    if offer.send is None:
        return FileOffered(offer.file_id, offer.caption)
    return SendAsked(offer.file_id, offer.send.call_id, offer.send.text)


def _translated(turn_id: TurnId, event: AgentEvent) -> tuple[TurnEvent, ...]:
    """A host's event as the core knows it."""
    match event:
        case TextDelta(text):
            return (Wrote(text),)
        case TextBoundary(reason):
            return (Paused(Boundary.TOOL if reason is BoundaryReason.TOOL else Boundary.PARAGRAPH),)
        case ToolActivity(call_id, name, _, title, status):
            used = ToolUsed(turn_id, _line(call_id, NAME_CHARS), _line(name or title, NAME_CHARS), status.value)
            return (Told(used),)
        case DialogAsked(dialog_id, kind, purpose, title, body, options, prefill, other_allowed, expires_s):
            shown = tuple(
                DialogOption(
                    one.option_id,
                    _line(one.label, LINE_CHARS),
                    _line(one.hint, LINE_CHARS),
                    one.dangerous,
                    one.rule if one.rule == _line(one.rule, RULE_CHARS) else "",
                )
                for one in options
            )
            title, body, prefill = _line(title, LINE_CHARS), _sayable(body), _sayable(prefill)
            asked = Asked(turn_id, dialog_id, kind, purpose, title, body, shown, prefill, other_allowed, expires_s)
            return (Told(asked),)
        case DialogGone(dialog_id):
            return (Told(DialogGoneMessage(turn_id, dialog_id)),)
        case FileOffered(file_id, caption):
            return (Told(FileOfferedMessage(turn_id, file_id, _sayable(caption))),)
        case SendAsked(file_id, call_id, text):
            return (Told(SendAskedMessage(turn_id, file_id, _line(call_id, NAME_CHARS), _sayable(text))),)
        case HostUsage(tokens_in, tokens_out, used, size):
            return (Told(UsageSeen(turn_id, tokens_in or 0, tokens_out or 0, used or 0, size or 0)),)
        case AgentRemarked(level, text):
            return (Told(Remarked(_line(level, NAME_CHARS), _line(text, LINE_CHARS))),)
        case TurnEnded(outcome, error):
            if error is None:
                return (HostEnded(outcome),)
            return (HostEnded(outcome, error.kind, error.detail),)
        case PlanChanged():
            return ()  # nobody shows it yet; the host keeps it for the plan review
    return ()


def _line(text: str, limit_chars: int) -> str:
    """One line, cut."""
    return " ".join(_sayable(text[:limit_chars]).split())


def _sayable(text: str) -> str:
    """Of a length that one message holds, and without lone surrogates, which no message can."""
    return text[:BODY_CHARS].encode("utf-8", "replace").decode()
