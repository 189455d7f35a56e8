"""The agent that comes with the bridge: any model behind the gateway, tools in this very process, inside its sandbox.

pydantic-ai runs the conversation with the model; here are the turn's events, its questions to the peer, its end, and
what is kept of it on disk. Neighbours: tools.py does, approvals.py decides what is asked, history.py keeps.
"""

import asyncio
import base64
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx2
import pydantic_ai
from pydantic_ai import Agent, CancellationToken
from pydantic_ai.conversation import Conversation
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelHTTPError,
    RunCancelled,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
)
from pydantic_ai.messages import (
    BinaryContent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserContent,
)
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResultEvent
from pydantic_ai.usage import UsageLimits

from protocol.agents import Thinking, tools_of
from protocol.content import Prompt
from protocol.errors import FailureKind
from protocol.ids import DialogId, SessionId
from protocol.to_supervisor import DialogKind, DialogOption, DialogPurpose, OpenedHow, TurnOutcome
from protocol.to_worker import DialogAnswer, Dismissed
from worker.hosts.base import (
    AgentEvent,
    AgentRemarked,
    BoundaryReason,
    DialogAsked,
    EventQueue,
    HostError,
    HostTraits,
    Opened,
    PlanChanged,
    SessionSpec,
    TextBoundary,
    TextDelta,
    ToolActivity,
    ToolControl,
    ToolStatus,
    TurnEnded,
    UsageSeen,
    failed,
    kind_in_words,
)
from worker.hosts.builtin import history
from worker.hosts.builtin.history import History
from worker.hosts.builtin.model import client, model_for
from worker.hosts.builtin.tools import Toolbox
from worker.hosts.pictures import picture
from worker.hosts.tasks import SessionTasks

REQUESTS = 50  # of the model's, in one turn
CLOSE_S = 2.0
PICTURES = 10  # in one prompt; the rest by path alone
TRAITS = HostTraits(
    name="builtin", version=pydantic_ai.__version__, images=True, resume=True, tool_control=ToolControl.EXACT
)
_INSTRUCTIONS = (
    "You are an assistant that somebody talks to from a phone. Files are in your workspace, where relative paths start. "
    "Use your tools where they help, one step at a time, and say in the end what came of it."
)
_SUM_UP = (
    "Sum up the conversation so far for yourself, in the language it was held in: what the user wants, what was decided, "
    "what was done to which files, what is still open. At most 400 words."
)
_EFFORT: dict[Thinking, str] = {
    Thinking.OFF: "none",
    Thinking.MINIMAL: "minimal",
    Thinking.LOW: "low",
    Thinking.MEDIUM: "medium",
    Thinking.HIGH: "high",
    Thinking.XHIGH: "xhigh",
    Thinking.MAX: "xhigh",
}


class BuiltinSession:
    """model: for tests that need no server; else by the spec."""

    def __init__(self, model: Model | None = None) -> None:
        self.traits = TRAITS
        self.gone = asyncio.Event()  # never set: there is no program that could end
        self._given = model
        self._spec: SessionSpec | None = None
        self._http: httpx2.AsyncClient | None = None
        self._agent: Agent[None, str | None] | None = None
        self._history: History | None = None
        self._tools: Toolbox | None = None
        self._names: frozenset[str] = frozenset()
        self._turn: _Turn | None = None
        self._dialogs = 0
        self._tasks = SessionTasks()

    # --- open -------------------------------------------------------------------------------------------------------

    async def open(self, spec: SessionSpec) -> Opened:
        self._spec = spec
        self._http = client()
        model = self._given or model_for(spec, self._http)
        settings = {} if spec.thinking is Thinking.AGENTS_OWN else {"openai_reasoning_effort": _EFFORT[spec.thinking]}
        instructions = f"{_INSTRUCTIONS}\n\n{spec.contract}".strip()
        self._agent = Agent(
            model,
            output_type=[str, type(None)],  # a model may well say nothing
            instructions=instructions,
            model_settings=cast(Any, settings or None),
        )
        self._tools = Toolbox(spec, self)
        self._names = tools_of(spec.access, spec.sends, spec.tools)
        try:
            return await asyncio.to_thread(self._open_history, spec)
        except OSError as error:
            raise HostError(FailureKind.OTHER, f"the conversation cannot be kept: {error.strerror}") from error

    def _open_history(self, spec: SessionSpec) -> Opened:
        if spec.session_id is not None and (found := history.load(_file(spec, spec.session_id))) is not None:
            self._history = found
            return Opened(spec.session_id, OpenedHow.RESUMED)
        fresh = SessionId(str(uuid.uuid4()))
        self._history = History(_file(spec, fresh), Conversation(conversation_id=fresh))
        self._history.path.parent.mkdir(mode=0o700, exist_ok=True)
        self._history.end(self._history.conversation)  # what is on disk can be resumed, also before its first turn
        how = OpenedHow.NEW if spec.session_id is None else OpenedHow.FRESH_AFTER_FAILED_RESUME
        return Opened(fresh, how)

    # --- turn -------------------------------------------------------------------------------------------------------

    def turn(self, prompt: Prompt) -> AsyncIterator[AgentEvent]:
        if self._turn is not None:
            raise RuntimeError("a turn is running")
        self._turn = turn = _Turn()
        return self._events(turn, prompt)

    async def _events(self, turn: "_Turn", prompt: Prompt) -> AsyncIterator[AgentEvent]:
        work = self._tasks.start(self._run(turn, prompt), "builtin turn")
        try:
            async for event in turn.events.drain():
                if isinstance(event, TurnEnded):
                    self._turn = None
                yield event
        finally:
            turn.token.cancel()
            if not work.done():
                work.cancel()
            if self._turn is turn:
                self._turn = None

    async def _run(self, turn: "_Turn", prompt: Prompt) -> None:
        end = failed(FailureKind.OTHER, "the turn ended without an end")
        try:
            end = await self._converse(turn, prompt)
        except Exception as error:
            # The boundary of a turn: whatever the library raises costs this turn. Its text may hold the peer's words.
            end = failed(FailureKind.OTHER, type(error).__name__)
        finally:
            turn.events.put(TurnEnded(TurnOutcome.ABORTED) if turn.aborted else end)

    async def _converse(self, turn: "_Turn", prompt: Prompt) -> TurnEnded:
        kept = self._history
        assert kept is not None and self._agent is not None and self._tools is not None
        if turn.aborted:
            return TurnEnded(TurnOutcome.ABORTED)
        await asyncio.to_thread(kept.begin, prompt.text)
        await self._shorten(turn, kept, forced=False)
        parts = await asyncio.to_thread(_parts, prompt)
        for attempt in (1, 2):
            try:
                return await self._ask_model(turn, kept, parts)
            except RunCancelled as stopped:
                await self._keep(kept, list(stopped.all_messages()))
                return TurnEnded(TurnOutcome.ABORTED)
            except UsageLimitExceeded:
                await self._keep(kept, turn.messages)
                return TurnEnded(TurnOutcome.LIMIT)
            except AgentRunError as error:
                kind = _kind_of(error)
                if kind is FailureKind.CONTEXT_FULL and attempt == 1 and not turn.spoke:
                    await self._shorten(turn, kept, forced=True)
                    continue
                await self._keep(kept, turn.messages)
                return failed(kind, str(error))
        return failed(FailureKind.CONTEXT_FULL)

    async def _ask_model(self, turn: "_Turn", kept: History, parts: Sequence[UserContent]) -> TurnEnded:
        """raises AgentRunError"""
        assert self._agent is not None and self._tools is not None
        # The library's own limit counts the whole conversation, whose usage travels along.
        limits = UsageLimits(request_limit=kept.conversation.usage.requests + REQUESTS)
        async with self._agent.run_stream_events(
            parts,
            conversation=kept.conversation,
            toolsets=[self._tools.toolset(self._names)],
            usage_limits=limits,
            cancellation_token=turn.token,
        ) as events:
            try:
                async for event in events:
                    if isinstance(event, AgentRunResultEvent):
                        result = event.result
                        before = kept.conversation.usage
                        await asyncio.to_thread(kept.end, result.conversation)
                        turn.tell_usage(result.conversation, before)
                        return TurnEnded(_outcome(result.all_messages()))
                    turn.hear(event)
            finally:
                with contextlib.suppress(Exception):
                    turn.messages = list(events.all_messages())
        raise UnexpectedModelBehavior("the run ended without a result")

    async def _keep(self, kept: History, messages: list[ModelMessage]) -> None:
        """What was said until a turn broke off: the model is told by the library that it was."""
        if not messages:
            messages = kept.conversation.messages
        with contextlib.suppress(OSError):
            await asyncio.to_thread(kept.end, replace(kept.conversation, messages=messages))

    async def _shorten(self, turn: "_Turn", kept: History, *, forced: bool) -> None:
        """Before a conversation no longer fits the model, its beginning becomes a summary."""
        messages = kept.conversation.messages
        if not messages or not (forced or history.is_long(messages)):
            return
        assert self._agent is not None
        old, recent = history.split(messages)
        try:
            result = await self._agent.run(_SUM_UP, message_history=old, toolsets=[], cancellation_token=turn.token)
            summary = result.output or "(nothing)"
        except RunCancelled:
            raise
        except AgentRunError:
            summary = "(The beginning of this conversation is no longer at hand.)"
        turn.events.put(AgentRemarked("info", "the conversation was shortened"))
        kept.conversation = replace(kept.conversation, messages=history.summed_up(summary, recent))

    # --- the peer, as tools see it ------------------------------------------------------------------------------------

    async def ask(
        self,
        kind: DialogKind,
        purpose: DialogPurpose,
        title: str,
        body: str = "",
        options: tuple[DialogOption, ...] = (),
        *,
        other_allowed: bool = False,
    ) -> DialogAnswer:
        turn = self._turn
        if turn is None or turn.aborted:
            return Dismissed()
        self._dialogs += 1
        dialog_id = DialogId(f"builtin-{self._dialogs}")
        answered: asyncio.Future[DialogAnswer] = asyncio.get_running_loop().create_future()
        turn.dialogs[dialog_id] = answered
        turn.events.put(DialogAsked(dialog_id, kind, purpose, title, body, options, other_allowed=other_allowed))
        try:
            return await answered
        finally:
            turn.dialogs.pop(dialog_id, None)

    def plan(self, entries: Sequence[tuple[str, str]]) -> None:
        if self._turn is not None:
            self._turn.events.put(PlanChanged(tuple(entries)))

    async def answer(self, dialog_id: DialogId, answer: DialogAnswer) -> bool:
        waiting = self._turn.dialogs.get(dialog_id) if self._turn is not None else None
        if waiting is None or waiting.done():
            return False
        waiting.set_result(answer)
        return True

    async def abort(self) -> None:
        turn = self._turn
        if turn is None or turn.aborted:
            return
        turn.aborted = True
        turn.events.mute()
        for waiting in turn.dialogs.values():
            if not waiting.done():
                waiting.set_result(Dismissed())
        turn.token.cancel()
        assert self._spec is not None
        self._tasks.start(self._insist(turn, self._spec.stop_grace_s), "builtin abort")

    async def _insist(self, turn: "_Turn", grace_s: float) -> None:
        await asyncio.sleep(grace_s)
        turn.events.put(TurnEnded(TurnOutcome.ABORTED))

    async def close(self) -> None:
        if self._turn is not None:
            self._turn.aborted = True
            self._turn.token.cancel()
        await self._tasks.end(grace_s=CLOSE_S if self._turn is not None else 0)
        if self._turn is not None:
            self._turn.events.put(TurnEnded(TurnOutcome.ABORTED))
        if self._http is not None:
            await self._http.aclose()
            self._http = None


class _Turn:
    """messages: what was said by the time a turn broke off"""

    def __init__(self) -> None:
        self.events = EventQueue()
        self.token = CancellationToken()
        self.aborted = False
        self.spoke = False
        self.messages: list[ModelMessage] = []
        self.dialogs: dict[DialogId, asyncio.Future[DialogAnswer]] = {}

    def hear(self, event: object) -> None:
        match event:
            case PartStartEvent(part=TextPart(content=text)) if text:
                self._say(text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                self._say(text)
            case PartEndEvent(part=TextPart()):
                self.events.put(TextBoundary(BoundaryReason.BLOCK))
            case FunctionToolCallEvent(part=part):
                self.events.put(TextBoundary(BoundaryReason.TOOL))
                self.events.put(ToolActivity(part.tool_call_id, part.tool_name, "other", "", ToolStatus.STARTED))
            case FunctionToolResultEvent(part=part):
                status = ToolStatus.DONE if part.part_kind == "tool-return" else ToolStatus.FAILED
                self.events.put(ToolActivity(part.tool_call_id, part.tool_name or "", "other", "", status))
            case _:
                pass  # thoughts, and whatever a newer library adds

    def tell_usage(self, after: Conversation, before: Any) -> None:
        used, had = after.usage, before
        self.events.put(
            UsageSeen(
                input_tokens=max(0, used.input_tokens - had.input_tokens),
                output_tokens=max(0, used.output_tokens - had.output_tokens),
            )
        )

    def _say(self, text: str) -> None:
        self.spoke = True
        self.events.put(TextDelta(text))


def _file(spec: SessionSpec, session_id: SessionId) -> Path:
    """Only ids of our own making name files."""
    try:
        name = str(uuid.UUID(session_id))
    except ValueError:
        name = "unknown"
    return spec.session_dir / "history" / f"{name}.json"


def _parts(prompt: Prompt) -> list[UserContent]:
    """The bridge's notes, each a part of its own, the peer's words, then pictures."""
    parts: list[UserContent] = [*prompt.notes]
    if prompt.text:
        parts.append(prompt.text)
    for path in prompt.images[:PICTURES]:
        if (shown := picture(Path(path))) is not None:
            parts.append(BinaryContent(data=base64.b64decode(shown.data), media_type=shown.mime))
    return parts or [""]


def _outcome(messages: Sequence[ModelMessage]) -> TurnOutcome:
    match getattr(messages[-1], "finish_reason", None) if messages else None:
        case "length":
            return TurnOutcome.LIMIT
        case "content_filter":
            return TurnOutcome.DECLINED
    return TurnOutcome.COMPLETED


def _kind_of(error: AgentRunError) -> FailureKind:
    name = type(error).__name__
    if "ContextWindow" in name:
        return FailureKind.CONTEXT_FULL
    if isinstance(error, ModelHTTPError):
        match error.status_code:
            case 401:
                return FailureKind.AUTH
            case 402 | 403:
                return FailureKind.QUOTA
            case 429 | 500 | 502 | 503 | 504 | 529:
                return FailureKind.OVERLOADED
    return kind_in_words(str(error))
